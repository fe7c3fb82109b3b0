"""What the benchmarks of smaller models share: the original, texts to calibrate and to measure on, and a log of rows.

The original is one of originals.py's, in WORK/original, or in WORK/adapted/original with all that is made of it. Every
row is added to NAME.jsonl there when it is done, and rows that are there, of the same samples and windows, are not
measured again: a run that was stopped goes on.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from bench.entry import Row
from bench.shared.originals import folder_of, original
from squeeze.checkpoint.text import read_tokens
from squeeze.engine.quality import evaluate
from squeeze.engine.report import Quality
from squeeze.integrations.load_model import load_model


class Bench:
    """args: work, samples, windows, threads, kl and rows, and where there is a choice, adapted; name: of the log of
    rows."""

    def __init__(self, args: argparse.Namespace, name: str) -> None:
        torch.set_num_threads(args.threads)
        adapted = getattr(args, "adapted", False)
        self.args, self.work = args, folder_of(args.work, adapted)
        self.texts = Path(os.environ["SQUEEZE_CORPUS"]) / "text"
        self.calibration, self.text = self.texts / "wiki.calibration.raw", self.texts / "wiki.eval.raw"
        self.original, self.log = original(args.work, adapted), self.work / f"{name}.jsonl"
        self.same = {"samples": args.samples, "windows": args.windows}
        lines = map(json.loads, self.log.read_text().splitlines() if self.log.is_file() else ())
        self.found: dict[str, Row] = {line["name"]: line for line in lines if self.same.items() <= line.items()}

    @cached_property
    def tokens(self) -> torch.Tensor:
        return read_tokens(self.text, self.original)

    def quality(self, folder: Path) -> Row:
        """What a row says of the model in a folder. gap: the logarithm of perplexity above the original's."""
        found = self._evaluated(folder, self.args.kl)
        gap = math.log(found.perplexity / self.found["original"]["perplexity"])
        known = {"perplexity": found.perplexity, "gap": gap, "kl": found.kl_mean, "kl_p99": found.kl_p99}
        return {**known, "top1": found.top1_agreement}

    def _evaluated(self, folder: Path, compared: bool) -> Quality:
        beside = load_model(self.original) if compared else None
        return evaluate(load_model(folder), self.tokens, windows=self.args.windows, original=beside)

    def run(self, names: Iterable[str], measure: Callable[[str], Row]) -> Iterator[Row]:
        """The rows that were asked for, of `names` all, as they are measured."""
        wanted = self.chosen(names)
        if "original" not in self.found:
            self._keep("original", self._evaluated(self.original, False).as_json())
        for name in wanted:
            if name in self.found:
                print(f"Note: {name} stands in {self.log.name}, and is not measured again", file=sys.stderr)
            else:
                yield self._keep(name, measure(name))

    def chosen(self, names: Iterable[str]) -> list[str]:
        """Of `names`, those that were asked for."""
        known = list(names)
        wanted = self.args.rows.split(",") if self.args.rows else known
        if unknown := set(wanted) - set(known):
            sys.exit(f"Error: no row is named {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        return wanted

    def _keep(self, name: str, row: Row) -> Row:
        self.found[name] = {**self.same, "name": name, **row}
        with self.log.open("a") as file:
            file.write(json.dumps(self.found[name]) + "\n")
        return self.found[name]


def bytes_of(layers: Iterable[Any]) -> int:
    """Of the matrices that a report speaks of, as they are stored."""
    return sum(round(layer.bits * layer.shape[0] * layer.shape[1] / 8) for layer in layers)
