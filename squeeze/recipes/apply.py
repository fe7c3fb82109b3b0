"""Recipes: YAML files that name what is done to a model, step by step.

    calibration: wiki.txt
    samples: 128
    steps:
      - prune: {pattern: "2:4", permute: true}
      - quantize: {bits: 4}
      - pack

A step takes the options of the command of its name. Two steps run as one pass over the blocks if they can. Otherwise
the next step reads the folder that the last one wrote, with dense weights if it can read no other form. config.json
records the recipe under `squeeze_recipe`.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import Any, Self

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.pipeline import Progress
from squeeze.engine.report import Report
from squeeze.errors import FormatError, OptionError, SqueezeError, printable
from squeeze.options import read_options
from squeeze.packing import folder
from squeeze.packing.pack import Totals
from squeeze.recipes.measure.evaluate import measure
from squeeze.recipes.measure.tasks import Tasks
from squeeze.recipes.steps import STEPS, Common, Pack, Pass, Prune, Quantize, Step
from squeeze.system import files, storage
from squeeze.system.documents import parse, read_object, read_yaml
from squeeze.system.extras import explained
from squeeze.system.storage import local_path
from squeeze.system.unchanged import stamps
from squeeze.system.work import discards, work_folder

__all__ = ["Recipe", "apply"]

KEY = "squeeze_recipe"  # in config.json
_FILES = {"calibration": "--calibration", "base": "squeeze pack --base"}  # what names files; the caller's options


@dataclass(frozen=True)
class Recipe:
    """The steps of a recipe, joined if possible, and `raw_steps`, the steps as they were written."""

    steps: tuple[Step, ...]
    common: Common
    raw_steps: tuple[dict[str, Any], ...]

    @classmethod
    def read(cls, path: Path | str) -> Self:
        """Read a recipe from a file; paths in it must lie in the current folder.

        Raises SqueezeError, with one line that names the step, if the recipe is invalid.
        """
        try:
            with explained():
                document = read_yaml(local_path(path))
        except OSError as error:
            raise SqueezeError(f"{path}: {error.strerror}") from None
        try:
            _check_names(document)
            return cls.parse(document)
        except SqueezeError as error:
            raise SqueezeError(f"{path}: {error}") from None

    @classmethod
    def parse(cls, document: Any) -> Self:
        """Create a recipe from parsed YAML or JSON: {"steps": [...]} and the fields of Common."""
        if not isinstance(document, dict) or not isinstance(document.get("steps"), list) or not document["steps"]:
            raise SqueezeError("is not a recipe: it needs a list of steps")
        common = read_options(Common, {key: value for key, value in document.items() if key != "steps"}, "steps")
        steps = [_step(number, entry) for number, entry in enumerate(document["steps"], 1)]
        parsed: list[Step] = []
        for number, entry in enumerate(steps, 1):
            step = entry
            try:
                joined = parsed[-1].joined(step) if parsed else None
                if joined is None:
                    step.check_after(parsed[-1] if parsed else None)
                if isinstance(step, Quantize) and len(parsed) > 1 and isinstance(parsed[-2], Prune):
                    step = step.within(parsed[-2])
            except SqueezeError as error:
                raise SqueezeError(f"step {number}: {error}") from None
            parsed[-1:] = [joined] if joined else [*parsed[-1:], step]
        return cls(tuple(parsed), common, tuple({step.name: step.non_defaults()} for step in steps))


def _check_names(document: Any) -> None:
    """Raise FormatError for a path or URL that only the caller may name (system/names.py)."""
    steps = document.get("steps") if isinstance(document, dict) else None
    entries = [one for one in steps if isinstance(one, dict)] if isinstance(steps, list) else []
    tables = [document, *(table for entry in entries for table in entry.values())]
    for key, option in _FILES.items():
        for table in tables:
            if isinstance(table, dict) and isinstance(text := table.get(key), str):
                try:
                    storage.relative(text)
                except FormatError as error:
                    raise FormatError(f"{key}: {error}: name it with {option}") from None


def _step(number: int, entry: Any) -> Step:
    entry = {entry: None} if isinstance(entry, str) else entry
    if not isinstance(entry, dict) or len(entry) != 1:
        raise SqueezeError(f"step {number}: is not the name of one step, with or without settings")
    name, settings = next(iter(entry.items()))
    if name not in STEPS:
        raise SqueezeError(f"step {number}: {printable(repr(name))} is unknown: choose from {', '.join(STEPS)}")
    try:
        return STEPS[name](_settings({} if settings is None else settings))
    except SqueezeError as error:
        raise SqueezeError(f"step {number}, {name}: {error}") from None


def _settings(entry: Any) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise SqueezeError(f"{printable(repr(entry))} is not a set of settings")
    return {str(key): value for key, value in entry.items()}


def apply(  # noqa: PLR0913
    recipe: Recipe | Path | str,
    source: Path | str,
    out: Path | str,
    *,
    calibration: Path | str | None = None,
    text: Path | str | None = None,
    windows: int | None = None,
    tasks: Tasks | None = None,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "cpu",
    progress: Progress | None = None,
) -> list[Report]:
    """Apply a recipe to a model's folder, and return a report of each pass over the blocks.

    Raises SqueezeError, and writes nothing, if the recipe or an input is invalid.

    Args:
        recipe: The recipe or its file.
        source: The model's folder.
        out: Folder to write.
        calibration: Calibration text, which replaces the recipe's.
        text: Text to measure quality on, before and after, before packing.
        windows: Windows of the text; None reads all of it.
        tasks: Tasks to measure quality on.
        resume: Whether to continue a stopped run.
        overwrite: Whether to replace an existing folder.
        device: Torch device.
        progress: Called with what is done and what is left.
    """
    source, out = local_path(source), local_path(out)
    recipe = _calibrated(recipe if isinstance(recipe, Recipe) else Recipe.read(recipe), calibration)
    Checkpoint.open(source)
    folder.check_target(source, out, overwrite)
    task = {"source": stamps(source), "steps": recipe.raw_steps, "common": asdict(recipe.common)}
    kept = resume or not overwrite
    with work_folder(out, "applying", task, discards(resume, overwrite)) as work:
        reports: list[Report] = []
        last = source
        for number, step in enumerate(recipe.steps):
            written, record = work / str(number), work / f"{number}.json"
            following = next(iter(recipe.steps[number + 1 :]), None)
            if not record.is_file():
                this_pass = Pass(common=recipe.common, original=source, next_step=following, resume=kept, device=device)
                outcome = _run(step, number, last, written, replace(this_pass, progress=progress))
                if isinstance(outcome, Report):
                    _finish(outcome, source, written, out, recipe)
                    if following is None or isinstance(following, Pack):
                        _measure(outcome, written, device, progress, text, windows, tasks)
                    reports.append(outcome)
                elif reports:
                    reports[-1].packed = outcome.raw, outcome.coded
                files.write_text(record, json.dumps([report.as_json() for report in reports]))
            reports = [Report.from_json(entry) for entry in parse(record.read_bytes(), schema=[{...: object}])]
            if last != source:
                rmtree(last, ignore_errors=True)
            last = written
        folder.move_into_place(last, out, overwrite)
    return reports


def _calibrated(recipe: Recipe, calibration: Path | str | None) -> Recipe:
    """Return the recipe with another calibration text, if one is given."""
    if calibration is None:
        return recipe
    return replace(recipe, common=replace(recipe.common, calibration=calibration))


def _run(step: Step, number: int, source: Path, out: Path, this_pass: Pass) -> Report | Totals:
    try:
        return step.run(source, out, this_pass)
    except OptionError as error:  # an option of the recipe, not of the caller
        raise SqueezeError(f"step {number + 1}, {step.name}: {error}") from error


def _finish(report: Report, source: Path, written: Path, out: Path, recipe: Recipe) -> None:
    """Make a folder and its report describe the whole run."""
    report.source, report.target = str(source), str(out)
    report.write(written)
    config = read_object(written / "config.json")
    (written / "config.json").write_text(json.dumps({**config, KEY: recipe.raw_steps}, indent=2) + "\n")


def _measure(
    report: Report,
    written: Path,
    device: str,
    progress: Progress | None,
    text: Path | str | None,
    windows: int | None,
    tasks: Tasks | None,
) -> None:
    target, report.target = report.target, str(written)
    if text is not None:
        measure(report, Path(text), windows, device, progress)
    if tasks is not None:
        tasks.measure(report, device, progress)
    report.target = target
    report.write(written)
