"""Options, original model and texts that the benchmarks of smaller models share.

The original is the bundled SmolLM2-135M in bf16, in WORK/original. Its weights are on a 4-bit grid that a method can
find again. With the adapter of levels 7 to 9 (WORK/adapted/original) they are on no grid. A stopped run continues: rows
that the record of this commit has are left out.
"""

import argparse
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from bench import records
from bench.measure import Measure, Row, option
from bench.tables import Listing
from squeeze.checkpoint.text import read_tokens
from squeeze.engine.quality import evaluate
from squeeze.engine.report import Quality
from squeeze.integrations.gguf.import_ import import_gguf
from squeeze.integrations.load_model import load_model
from squeeze.lm import adapter, models
from squeeze.lm.sources import INNER, OUTER

CORES = len(os.sched_getaffinity(0))
WORK = option("work", type=Path, help="folder for the model and its results")
ADAPTED = option("--adapted", action="store_true", help="use the model with its adapter, whose weights are on no grid")


def options(samples: int) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Return the options of a benchmark that calibrates on some sequences by default."""
    sequences = f"sequences of 512 tokens to calibrate on, default: {samples}"
    return (
        WORK,
        option("--rows", help="rows to measure, separated by commas, default: all"),
        option("--samples", type=int, default=samples, help=sequences),
        option("--windows", type=int, default=4, help="windows of 1,024 tokens to evaluate on, default: 4"),
        option("--threads", type=int, default=CORES, help=f"threads, default: {CORES}"),
        option("--kl", action="store_true", help="also measure the KL divergence from the original"),
    )


def measure(
    name: str,
    rows: Callable[[], Iterable[str]],
    row_of: "Callable[[Bench, str], Row]",
    table: Listing,
    samples: int,
    *others: tuple[str, Mapping[str, Any]],
) -> Measure:
    """Return a benchmark of the bundled model.

    Args:
        name: its name, and that of its table
        rows: function that returns the names of its rows
        row_of: function that measures a row
        table: its table
        samples: sequences to calibrate on by default
        others: further options
    """

    def measured(given: argparse.Namespace) -> Iterator[Row]:
        bench = Bench(given, name)
        return bench.run(rows(), lambda row: row_of(bench, row))

    needs, key = ("a corpus", "the bundled model"), ("name", "samples", "windows")
    given = *options(samples), *others
    return Measure(measured, key, options=given, needs=needs, time=25, tables={name: table})


class Bench:
    """The model and texts of a run, and the names of the rows that are known.

    Args:
        args: values of the options
        name: name of the benchmark
    """

    def __init__(self, args: argparse.Namespace, name: str) -> None:
        torch.set_num_threads(args.threads)
        self.args, self.work, self.original = args, args.work, original(args.work, adapted=False)
        texts = Path(os.environ["SQUEEZE_CORPUS"]) / "text"
        self.calibration, self.text = texts / "wiki.calibration.raw", texts / "wiki.eval.raw"
        self.same = {"samples": args.samples, "windows": args.windows}
        known = records.current(name, args.results)
        self.known = {row["name"] for row in known if self.same.items() <= row.items()}

    @cached_property
    def tokens(self) -> torch.Tensor:
        return read_tokens(self.text, self.original)

    @cached_property
    def before(self) -> float:
        """The perplexity of the original."""
        return self._evaluated(self.original, False).perplexity

    def quality(self, folder: Path) -> Row:
        """Evaluate the model in a folder. `gap` is the increase in log-perplexity."""
        found = self._evaluated(folder, self.args.kl)
        gap = math.log(found.perplexity / self.before)
        known = {"perplexity": found.perplexity, "gap": gap, "kl": found.kl_mean, "kl_p99": found.kl_p99}
        return {**known, "top1": found.top1_agreement}

    def _evaluated(self, folder: Path, compared: bool) -> Quality:
        beside = load_model(self.original) if compared else None
        return evaluate(load_model(folder), self.tokens, windows=self.args.windows, original=beside)

    def given(self, out: Path) -> dict[str, Any]:
        """Return the arguments that operations share."""
        return {"out": out, "calibration": self.calibration, "samples": self.args.samples, "overwrite": True}

    def made(self, name: str, make: Callable[[Path], Row], is_kept: bool = False) -> Row:
        """Return a row: what `make` says of the folder that it writes, the quality of its model, and the seconds.

        Args:
            name: name of the row
            make: function that writes a folder
            is_kept: whether the folder is kept for another row
        """
        out, started = self.work / f"out-{name.replace(':', '-')}", time.perf_counter()
        known = make(out)
        seconds = round(time.perf_counter() - started)
        found = self.quality(out)
        if not is_kept:
            shutil.rmtree(out)
        return {**known, **found, "seconds": seconds}

    def run(self, names: Iterable[str], measure: Callable[[str], Row]) -> Iterator[Row]:
        """Yield the requested rows as they are measured."""
        known = list(names)
        wanted = self.args.rows.split(",") if self.args.rows else known
        if unknown := set(wanted) - set(known):
            sys.exit(f"Error: no row is named {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        for name in wanted:
            if name in self.known:
                print(f"Note: {name} is in the record and is not measured again", file=sys.stderr)
            else:
                yield {**self.same, "name": name, **measure(name)}


def bytes_of(layers: Iterable[Any]) -> int:
    """Return the stored bytes of a report's matrices."""
    return sum(round(layer.bits * layer.shape[0] * layer.shape[1] / 8) for layer in layers)


def compared_with_base(rows: Sequence[Row]) -> list[Row]:
    """Add `of base`: the gap as a share of the gap of the row that `base` names."""
    gaps = {row["name"]: row["gap"] for row in rows}
    others = [row["base"] if row["base"] in gaps and row["base"] != row["name"] else None for row in rows]
    shares = [row["gap"] / gaps[base] if base else None for row, base in zip(rows, others, strict=True)]
    return [row | {"of base": share} for row, share in zip(rows, shares, strict=True)]


def folder_of(work: Path, adapted: bool) -> Path:
    """Return the folder in WORK for everything that is made from one of the two models."""
    return work / "adapted" if adapted else work


def original(work: Path, adapted: bool) -> Path:
    """Return the folder of one of the two models. It is made if it is missing."""
    folder = folder_of(work, adapted) / "original"
    if not folder.is_dir():
        folder.parent.mkdir(exist_ok=True, parents=True)
        if adapted:
            _adapt(shutil.copytree(original(work, False), folder) / "model.safetensors")
            return folder
        source = models.bundled_path()
        if source is None:
            raise SystemExit(f"Error: the bundled model is not installed: {models.HELP}")
        import_gguf(source, folder)
    return folder


def _adapt(path: Path) -> None:
    added, tensors = adapter.load(models.BUNDLED_ADAPTER), load_file(path)
    for name, change in added.changes.items():
        weight = tensors[_stored(name)]
        tensors[_stored(name)] = (weight.float() + torch.from_numpy(change.rows(0, len(weight)))).to(weight.dtype)
    for name, norm in added.norms.items():
        tensors[_stored(name)] = torch.tensor(norm).to(tensors[_stored(name)].dtype)
    save_file(tensors, path, {"format": "pt"})


def _stored(name: str) -> str:
    """Return the checkpoint's tensor name for an adapter's name, such as 0.query or final_norm."""
    layer, _, part = name.rpartition(".")
    return f"model.layers.{layer}.{INNER[part][0]}" if layer else OUTER[part][0]
