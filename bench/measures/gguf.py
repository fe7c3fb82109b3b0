"""Compare GGUF files of each type with those of llama.cpp's quantizer and an importance matrix.

The bundled model's weights are on a 4-bit grid (q4_1), so q4_1 and finer types cost next to nothing. Both files of a
row have the same types in all tensors, and llama.cpp measures them. The importance matrix is the mean square of the
original's inputs on our calibration tokens. A file that is in WORK is not written again.
"""

import argparse
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np

import squeeze
from bench.measure import Measure, Row, option
from bench.shared import llamacpp
from bench.shared.small_models import ADAPTED, WORK, folder_of, original
from bench.tables import Column, Listing, percent
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.text import read_tokens
from squeeze.engine.forward import input_squares
from squeeze.integrations.gguf.export import Export
from squeeze.lm.gguffile import GgufFile
from squeeze.recipes.gguf.quantize import BOUNDS
from squeeze.recipes.tokens import calibration_tokens

_DRAWS, _TYPES = 10_000, "q4_0,q4_k,q3_k,q2_k"


def rows(options: argparse.Namespace) -> Iterator[Row]:
    bench = Bench(options)
    for kind in options.types.split(","):
        yield bench.row(kind)


def row_name(kind: str, bound: float | None) -> str:
    """Return a row's name: its GGUF type with the bound of a token's weight, requested or the type's default."""
    bound = bound or BOUNDS.get(kind)
    return kind + (f"-bound-{bound:g}" if bound else "")


class Bench:
    """The model, texts and files of a run.

    Args:
        args: the parsed options
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.work = args, folder_of(args.work, args.adapted)
        texts = Path(os.environ["SQUEEZE_CORPUS"]) / "text"
        self.calibration = texts / "wiki.calibration.raw"
        self.original, self.floats = original(args.work, args.adapted), self.work / "original.gguf"
        if not self.floats.is_file():
            Export.of(Checkpoint.open(self.original)).write(self.floats)
        self.tokens = read_tokens(texts / "wiki.eval.raw", self.original)

    @cached_property
    def importance(self) -> dict[str, np.ndarray]:
        """The importance matrix: mean squares of inputs, float32 [I], by the file's tensor names."""
        checkpoint = Checkpoint.open(self.original)
        tokens = calibration_tokens(self.original, self.calibration, self.args.samples, 512, 0)
        squares = input_squares(checkpoint, tokens)
        named = Export.of(checkpoint).named
        return {
            name: squares[source.removesuffix(".weight")].numpy()
            for name, (source,) in named.items()
            if source.removesuffix(".weight") in squares
        }

    @cached_property
    def before(self) -> np.ndarray:
        return self._losses(self.floats)

    def _losses(self, path: Path) -> np.ndarray:
        """Return the mean loss of each window, in nats per token."""
        return llamacpp.losses(path, self.tokens, self.args.windows, self.args.threads)

    def row(self, kind: str) -> Row:
        """Measure a type.

        `gap` is the increase in mean log-perplexity, in nats per token. `sure` says whether ours is better in 90 % of
        draws of windows.
        """
        name = row_name(kind, self.args.bound)
        ours = self.work / f"ours-{name}.gguf"
        if not ours.is_file():
            given = {"calibration": self.calibration, "samples": self.args.samples, "bound": self.args.bound}
            squeeze.quantize(self.original, out=ours, format="gguf", type=kind, **given)
        types, mine = types_of(ours), self._losses(ours) - self.before
        row = {"type": name + "-adapted" * self.args.adapted, "samples": self.args.samples, "windows": len(mine)}
        row |= {"bytes": ours.stat().st_size, "gap": float(mine.mean())}
        theirs = self._rival(kind, types)
        row |= {"imatrix": float(theirs.mean()), "of imatrix": float(mine.mean() / theirs.mean())}
        return row | {"sure": is_better(theirs - mine), "matrices": share_of_type(types, kind)}

    def _rival(self, kind: str, types: dict[str, int]) -> np.ndarray:
        """Return the gap per window of llama.cpp's file with the same types."""
        path = self.work / f"imatrix-{kind}.gguf"
        if not path.is_file():
            outer = types["token_embd.weight"]
            llamacpp.quantise(self.floats, path, kind, outer, self.importance, self.args.threads)
        if types_of(path) != types:
            raise SystemExit(f"Error: {path.name} has tensors of other types than ours")
        return self._losses(path) - self.before


def types_of(path: Path) -> dict[str, int]:
    """Return the number of each tensor's type, by tensor name."""
    file = GgufFile(path)
    return {name: int(file.kind(name)) for name in sorted(file.shapes)}


def share_of_type(types: dict[str, int], kind: str) -> float:
    """Return the share of the blocks' matrices that have the requested type itself."""
    import gguf

    wanted = gguf.GGMLQuantizationType[kind.upper()]
    blocks = [number for name, number in types.items() if name.startswith("blk.") and number != 0]
    return sum(number == wanted for number in blocks) / len(blocks)


def is_better(better: np.ndarray) -> bool:
    """Return True if the mean of a bootstrap sample of windows is above 0 in 90 % of draws."""
    random = np.random.default_rng(0)
    means = random.choice(better, (_DRAWS, len(better))).mean(1)
    return bool((means > 0).mean() >= 0.9)


MEASURE = Measure(
    rows,
    key=("type", "samples", "windows"),
    needs=("a corpus", "the bundled model", "llama-cpp-python"),
    rivals=("llama-cpp-python",),
    time=60,
    options=(
        WORK,
        ADAPTED,
        option("--types", default=_TYPES, help=f"types, separated by commas, default: {_TYPES}"),
        option("--bound", type=float, help="limit of a token's weight, as multiple of the median, default: 4 for q3_k"),
        option("--samples", type=int, default=24, help="sequences of 512 tokens to calibrate on, default: 24"),
        option("--windows", type=int, default=8, help="windows of 1,024 tokens to evaluate on, default: 8"),
        option("--threads", type=int, default=1, help="threads, default: 1"),
    ),
    tables={
        "gguf": Listing(
            Column("type", "type"),
            Column("matrices of it", percent("matrices", 0)),
            Column("bytes", "bytes", ","),
            Column("gap", "gap", ".4f"),
            Column("llama.cpp with imatrix", "imatrix", ".4f"),
            Column("gap, relative to imatrix's", percent("of imatrix", 0)),
            Column("better in 90 % of draws", lambda row: {True: "yes", False: "no"}.get(row.get("sure"))),
        )
    },
)
