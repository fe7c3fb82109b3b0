"""Measure what it costs to halve the experts of a mixture: by the norm of their weights, by REAP, and by merging.

The mixture is trained first (bench/shared/trained_models.py). It is calibrated on what it was trained on, and evaluated
on the parts of the same texts that were held out.
"""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import squeeze
from bench.measure import Measure, Row, option
from bench.shared.trained_models import held_out, mixture, sources
from bench.tables import Column, Listing, compared_with
from squeeze.checkpoint.pretrained import load_tokenizer
from squeeze.engine.quality import evaluate
from squeeze.integrations.load_model import load_model

BASE = "norm"
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    BASE: ("norm", {}),
    "reap, as published": ("reap", {"fit": 0}),
    "merge, as published": ("merge", {"fit": 0}),
    "reap": ("reap", {}),
    "merge": ("merge", {}),
}
_WINDOW = 512  # tokens


def rows(options: argparse.Namespace) -> Iterator[Row]:
    torch.set_num_threads(options.threads)
    original = options.work / "original"
    if not original.is_dir():
        mixture(original)
    calibration = options.work / "calibration.txt"
    calibration.write_text(_mixed({kind: text[:200_000] for kind, text in sources().items()}))
    tokens = torch.tensor(load_tokenizer(original)(_mixed(held_out()), verbose=False)["input_ids"])
    model = load_model(original)
    before = evaluate(model, tokens, window=_WINDOW, windows=options.windows)
    yield {"name": "original", "perplexity": before.perplexity, "gap": 0.0}
    for name in options.rows.split(";") if options.rows else METHODS:
        method, given = METHODS[name]
        out = options.work / "reduced"
        if method != BASE:
            given = {"calibration": calibration, "samples": 96, "sequence_length": 256, **given}
        report = squeeze.experts(original, method, keep=options.keep, out=out, overwrite=True, **given)
        after = evaluate(load_model(out), tokens, window=_WINDOW, windows=options.windows, original=model)
        errors = [layer["error"] for layer in report.experts.values()]
        row: Row = {"name": name, "perplexity": after.perplexity, "kl": after.kl_mean, "bytes": report.stored_bytes}
        row["gap"] = math.log(after.perplexity / before.perplexity)
        yield row | {"error": None if None in errors else sum(errors) / len(errors)}


def _mixed(texts: dict[str, str], piece: int = 4000) -> str:
    """Return texts of several kinds in turn, a piece of each."""
    length = min(map(len, texts.values()))
    return "\n".join(text[first : first + piece] for first in range(0, length, piece) for text in texts.values())


MEASURE = Measure(
    rows,
    key=("name",),
    options=(
        option("work", type=Path, help="folder for the model and its results"),
        option("--keep", type=float, default=0.5, help="share of experts, default: 0.5"),
        option("--rows", help="rows to measure, separated by semicolons, default: all"),
        option("--windows", type=int, default=48, help="windows of 512 tokens to evaluate on, default: 48"),
        option("--threads", type=int, default=1, help="threads, default: 1"),
    ),
    needs=("a corpus",),
    time=8,
    tables={
        "experts-pruned": Listing(
            Column("method", "name"),
            Column("perplexity", "perplexity", ".3f"),
            Column("gap", "gap", ".4f"),
            Column("of the gap by norm", "of base", ".2f"),
            Column("KL", "kl", ".4f"),
            Column("error of a layer", "error", ".3f"),
            prepare=compared_with(BASE, "gap"),
        )
    },
)
