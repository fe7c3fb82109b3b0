"""Sweeps of recipes over models: each pair becomes a folder, and a table compares size and quality.

Pairs run on a cluster, or one after another. A pair whose folder was already made by this recipe from this model is
kept.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from squeeze.cluster.engine import Call, Engine, Needs
from squeeze.cluster.tasks import Outcome, run_calls
from squeeze.engine.report import NAME, Report
from squeeze.errors import FormatError, SqueezeError
from squeeze.packing.folder import raw_size
from squeeze.recipes.apply import KEY, Recipe, apply
from squeeze.recipes.measure.tasks import Tasks
from squeeze.system.documents import read_object

__all__ = ["Pair", "Settings", "pairs", "sweep", "table"]

_NETWORKS = 2  # that are in memory while quality is measured
_LEAST_MEMORY = 1 << 30  # bytes of a worker beside them


@dataclass(frozen=True)
class Pair:
    """A recipe, a model, and the folder to write."""

    recipe: Path
    model: Path
    target: Path


@dataclass(frozen=True)
class Settings:
    """Arguments of `apply` other than the pair; `threads` are those of a worker."""

    calibration: Path | None = None
    text: Path | None = None
    windows: int | None = None
    tasks: Tasks | None = None
    overwrite: bool = False
    device: str = "cpu"
    threads: int = 1


def pairs(recipes: Sequence[Path], models: Sequence[Path], folder: Path) -> list[Pair]:
    """Combine each model with each recipe; the folder is `MODEL-RECIPE`. Raises SqueezeError for a name that occurs
    twice.
    """
    found = [Pair(recipe, model, folder / f"{model.name}-{recipe.stem}") for model in models for recipe in recipes]
    names = [pair.target for pair in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise SqueezeError(f"two results would be {twice}: rename a model or a recipe")
    return found


def sweep(
    wanted: Sequence[Pair], settings: Settings, engine: Engine[Any] | None = None
) -> Iterator[tuple[Pair, Report | None, str]]:
    """Apply recipes to models, and yield each pair with its report or an error message.

    Raises SqueezeError before any work if a recipe is invalid.
    """
    for recipe in dict.fromkeys(pair.recipe for pair in wanted):
        Recipe.read(recipe)
    todo = []
    for pair in wanted:
        if not settings.overwrite and (report := _earlier_report(pair)):
            yield pair, report, ""
        else:
            todo.append(pair)
    for outcome in run_calls(engine, _calls(todo, settings)) if engine else _one_by_one(todo, settings):
        error = outcome.error
        yield outcome.key, outcome.result, "" if error is None else str(error) or type(error).__name__


def applied(pair: Pair, settings: Settings) -> Report:
    """Apply one recipe to one model, as a task of a worker, and return the last report."""
    torch.set_num_threads(settings.threads)
    options = {name: value for name, value in vars(settings).items() if name != "threads"}
    return apply(pair.recipe, pair.model, pair.target, **options)[-1]


def table(done: Sequence[tuple[Pair, Report]]) -> str:
    """Return size and quality as columns of text, the smallest result of each model first."""
    lines = [f"{'model':<24} {'recipe':<20} {'bytes':>14} {'share':>8} {'bits':>6} {'perplexity':>16} {'KL':>9}"]
    for pair, report in sorted(done, key=lambda one: (one[0].model, _size(one[1])[0])):
        size, raw = _size(report)
        quality = f"{'':>16} {'':>9}"
        if report.after:
            before = f" ({report.before.perplexity:.2f})" if report.before else ""
            kl = "" if report.after.kl_mean is None else f"{report.after.kl_mean:.4f}"
            quality = f"{f'{report.after.perplexity:.2f}{before}':>16} {kl:>9}"
        share = f"{100 * size / max(raw, 1):.1f} %"
        names = f"{pair.model.name:<24} {pair.recipe.stem:<20}"
        lines.append(f"{names} {size:>14,} {share:>8} {report.bits_per_weight:>6.3f} {quality}".rstrip())
    return "\n".join(lines)


def _size(report: Report) -> tuple[int, int]:
    """Return the bytes that are finally stored, and those of the original."""
    raw, coded = report.packed or (report.raw_bytes, report.stored_bytes)
    return coded, raw


def _earlier_report(pair: Pair) -> Report | None:
    """Return the report of a pair whose folder an earlier sweep completed, else None."""
    if not (pair.target / NAME).is_file():
        return None
    try:
        report, recipe = Report.read(pair.target), Recipe.read(pair.recipe)
        same = read_object(pair.target / "config.json").get(KEY) == list(recipe.raw_steps)
    except FormatError:
        return None
    return report if same and report.source == str(pair.model) else None


def _calls(todo: Sequence[Pair], settings: Settings) -> Iterator[Call[Pair]]:
    gpus = 1 if settings.device.startswith("cuda") else 0
    for pair in todo:
        memory = _LEAST_MEMORY + _NETWORKS * raw_size(pair.model)
        name = f"apply {pair.recipe.stem} to {pair.model.name}"
        yield Call(pair, name, applied, (pair, settings), Needs(settings.threads, gpus, memory))


def _one_by_one(todo: Sequence[Pair], settings: Settings) -> Iterator[Outcome[Pair]]:
    for pair in todo:
        try:
            yield Outcome(pair, applied(pair, settings))
        except (SqueezeError, OSError, MemoryError) as error:
            yield Outcome(pair, None, error)
