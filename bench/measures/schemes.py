"""Schemes of compressed-tensors: ours beside llm-compressor's of the same name, by GPTQ and by rounding.

The original is small_models.py's. All folders are run by transformers with compressed-tensors, which rounds activations
as the scheme says; in float32, once it has expanded weights. Gaps are of the mean log-perplexity above the original's,
in nats a token, over windows of text/wiki.eval.raw; llm-compressor calibrates on the same tokens. Losses of a folder
stand in WORK/losses.jsonl once they are measured. FP8_BLOCK is not among them: its activations come in groups of 128,
and the original has rows of 576.
"""

import argparse
import json
import math
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

import numpy as np

import squeeze
from bench.entry import Row
from bench.measures.gguf import sure
from bench.shared import originals
from bench.shared.small_models import Bench
from squeeze.engine.quality import evaluate
from squeeze.integrations.load_model import load_model
from squeeze.recipes.tokens import calibration_tokens

GROUP = 64  # of W4A8 and W4A16, whose 128 does not divide 576
WINDOW = 1024
RIVALS = {"gptq": [], "rtn": ["--rtn"], "smoothed": ["--smooth"]}  # llm-compressor's ways, and what its program is told
ROTATIONS = {"rotated": True, "full": "full"}  # of ours


def rows(options: argparse.Namespace) -> Iterator[Row]:
    schemes = Schemes(options)
    for scheme in options.schemes.split(","):
        yield schemes.row(scheme)


class Schemes:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.bench = options, Bench(options, "schemes")
        self.log = self.bench.work / "losses.jsonl"

    @cached_property
    def before(self) -> np.ndarray:
        return self._known("original", lambda: self._losses(self.bench.original))

    def row(self, scheme: str) -> Row:
        """gap: of ours; the others by their ways. sure: whether ours is better than the better of llm-compressor's, of
        those that were asked for, in 90 % of draws of windows."""
        gaps = {way: self._gaps(scheme, way) for way in ("ours", *self.options.ways.split(","))}
        mean = {way: float(values.mean()) for way, values in gaps.items()}
        named = {"scheme": originals.named(scheme, self.options.adapted)}
        row = {**named, "samples": self.options.samples, "windows": len(self.before), "gap": mean.pop("ours")}
        rivals = [way for way in RIVALS if way in gaps]
        if not rivals:
            return row | mean
        best = min(rivals, key=lambda way: mean[way])
        better = {"of best": row["gap"] / mean[best], "sure": sure(gaps[best] - gaps["ours"])}
        return row | mean | better

    def _gaps(self, scheme: str, way: str) -> np.ndarray:
        return self._known(f"{scheme}-{way}", lambda: self._made(scheme, way)) - self.before

    def _known(self, name: str, measure: Callable[[], np.ndarray]) -> np.ndarray:
        """Losses of each window; what the log has is not measured again."""
        same = {"name": name, "samples": self.options.samples, "windows": self.options.windows}
        for line in map(json.loads, self.log.read_text().splitlines() if self.log.is_file() else ()):
            if same.items() <= line.items():
                return np.array(line["losses"])
        losses = measure()
        with self.log.open("a") as file:
            file.write(json.dumps({**same, "losses": losses.tolist()}) + "\n")
        return losses

    def _made(self, scheme: str, way: str) -> np.ndarray:
        out = self.bench.work / f"{scheme}-{way}"
        shutil.rmtree(out, ignore_errors=True)
        if way not in RIVALS:
            given = {"calibration": self.bench.calibration, "samples": self.options.samples}
            groups = {"group_size": GROUP} if scheme.startswith("w4") else {}
            groups |= {"rotate": ROTATIONS[way]} if way in ROTATIONS else {}
            groups |= {"refine": 3} if way == "refined" else {}
            groups |= {"smooth": 0.0} if way == "plain" else {}
            method = "rtn" if way == "rounded" else "gptq"
            squeeze.quantize(self.bench.original, method, out=out, scheme=scheme, **groups, **given)
        else:
            self._rival(scheme, out, RIVALS[way])
        losses = self._losses(out)
        shutil.rmtree(out)
        return losses

    def _rival(self, scheme: str, out: Path, told: list[str]) -> None:
        options = self.options
        if options.rival is None:
            raise SystemExit("Error: llm-compressor needs --rival PYTHON")
        tokens = calibration_tokens(self.bench.original, self.bench.calibration, options.samples, 512, 0)
        np.save(self.bench.work / "tokens.npy", tokens.numpy())
        script = Path(__file__).parents[1] / "shared" / "llm_compressor.py"
        command = [options.rival, script, self.bench.original, self.bench.work / "tokens.npy", out]
        command += [f"--scheme={scheme}", f"--group-size={GROUP}", f"--threads={options.threads}"]
        subprocess.run(list(map(str, [*command, *told])), check=True)

    def _losses(self, folder: Path) -> np.ndarray:
        model, tokens = load_model(folder), self.bench.tokens
        starts = range(0, len(tokens) - 1, WINDOW)[: self.options.windows]
        return np.array([math.log(evaluate(model, tokens[start : start + WINDOW]).perplexity) for start in starts])
