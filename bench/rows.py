"""What the benchmarks of smaller models share: the original, texts to calibrate and to measure on, and a log of rows.

The original is the bundled SmolLM2-135M as bf16 in WORK/original. Every row is added to WORK/NAME.jsonl when it is
done, and rows that are there, of the same samples and windows, are not measured again.
"""

import argparse
import json
import math
import os
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from squeeze.checkpoint.text import read_tokens
from squeeze.engine.quality import Quality, evaluate
from squeeze.integrations.load_model import load_model
from squeeze.lm.models import bundled_path
from squeeze.recipes.import_gguf import import_gguf

Row = dict[str, Any]


def parser(description: str | None, rows: Iterable[str], samples: int) -> argparse.ArgumentParser:
    """Of the options that Bench needs; more may be added."""
    found = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("work", type=Path)
    found.add_argument("--rows", default=",".join(rows), help="names with commas between them (all)")
    found.add_argument("--samples", type=int, default=samples, help=f"of 512 tokens of the calibration ({samples})")
    found.add_argument("--windows", type=int, help="of 1,024 tokens to measure on (all)")
    found.add_argument("--threads", type=int, default=1)
    found.add_argument("--kl", action="store_true", help="measure the KL divergence, too, which takes the original")
    return found


class Bench:
    """args: what `parser` reads; name: of the log of rows."""

    def __init__(self, args: argparse.Namespace, name: str) -> None:
        torch.set_num_threads(args.threads)
        self.args, self.work = args, args.work
        self.texts = Path(os.environ["SQUEEZE_CORPUS"]) / "text"
        self.calibration, self.text = self.texts / "wiki.calibration.raw", self.texts / "wiki.eval.raw"
        self.work.mkdir(exist_ok=True, parents=True)
        self.original, self.log = self.work / "original", self.work / f"{name}.jsonl"
        if not self.original.is_dir():
            import_gguf(bundled_path(), self.original)
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
        original = load_model(self.original) if compared else None
        return evaluate(load_model(folder), self.tokens, windows=self.args.windows, original=original)

    def run(self, measure: Callable[[str], Row], size: Callable[[Row], str]) -> dict[str, Row]:
        """The rows asked for and those that the log has besides, by name. size: what a line says of a new row."""
        if "original" not in self.found:
            self._keep("original", self._evaluated(self.original, False).as_json())
        original = self.found["original"]
        print(f"original: perplexity {original['perplexity']:.3f} on {original['tokens']} tokens")
        for name in self.args.rows.split(","):
            if name not in self.found:
                row = self._keep(name, measure(name))
                print(f"{name}: gap {row['gap']:.3f}, {size(row)}, {row['seconds']:.0f} s", flush=True)
        return self.found

    def _keep(self, name: str, row: Row) -> Row:
        self.found[name] = {**self.same, "name": name, **row}
        with self.log.open("a") as file:
            file.write(json.dumps(self.found[name]) + "\n")
        return self.found[name]


def bytes_of(layers: Iterable[Any]) -> int:
    """Of the matrices that a report speaks of, as they are stored."""
    return sum(round(layer.bits * layer.shape[0] * layer.shape[1] / 8) for layer in layers)


def column(value: float | None) -> str:
    """Of a table: empty where nothing was measured."""
    return "" if value is None else f"{value:.3f}"
