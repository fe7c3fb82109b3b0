"""Measure what pruning costs: gap, KL divergence and stored bytes of each method, compared with textbook forms and
GPTQ.

Calibration text is text/wiki.calibration.raw, evaluation text is text/wiki.eval.raw, and the model is that of
small_models.py. Bits are those of the blocks' matrices as stored; bytes are those of the folder after `squeeze pack`.
The recovered row is the permuted one after some minutes of training.
"""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import squeeze
from bench.measure import Row, minutes, option
from bench.shared import small_models
from bench.shared.small_models import Bench, compared_with_base
from bench.tables import Column, Listing, percent
from squeeze.prune.scores import Magnitude, Wanda
from squeeze.prune.slim import SLiM
from squeeze.prune.sparsegpt import SparseGPT
from squeeze.quant.gptq import GPTQ
from squeeze.recipes.prune import prune, recovered

PLAIN = {"correction": 0.0}
PERMUTED = {"permute": True}
INT4 = GPTQ(bits=4, group_size=128)
BASE = "sparsegpt-textbook"  # whose gap the others' are compared with
_SAME_FORM = re.compile(r"(magnitude|wanda|sparsegpt).*")  # 2:4 in bf16


def methods() -> dict[str, tuple]:
    """Return a method, and options of squeeze.prune or (for GPTQ) squeeze.quantize, by row name."""
    return {
        "magnitude": (Magnitude(), {}),
        "wanda": (Wanda(), PLAIN),
        BASE: (SparseGPT.textbook(), PLAIN),
        "sparsegpt": (SparseGPT(), {}),
        "sparsegpt-permuted": (SparseGPT(), PERMUTED),
        "sparsegpt-recovered": (SparseGPT(), PERMUTED),
        "int4": (SparseGPT(quantizer=INT4), {}),
        "int4-slim": (SLiM(base=SparseGPT(quantizer=INT4.replaced(group_size=-1)), rank=0.01), {}),
        "gptq-4": (GPTQ(bits=4, group_size=64), {}),
    }


def measure(bench: Bench, name: str) -> Row:
    method, options = methods()[name]

    def make(out: Path) -> Row:
        given = bench.given(out) | options
        if isinstance(method, GPTQ):
            report = squeeze.quantize(bench.original, method, format="squeeze", **given)
        else:
            report = prune(bench.original, method, **given)
        if name == "sparsegpt-recovered":
            more = {"calibration": bench.calibration, "samples": bench.args.recovery_samples}
            report = recovered(bench.original, out, minutes=bench.args.recover, **more)
        coded = squeeze.pack(out, bench.work / "packed", threads=bench.args.threads, overwrite=True).coded
        shutil.rmtree(bench.work / "packed")
        known = {"bits": report.bits_per_weight, "sparsity": report.sparsity, "bytes": coded}
        return {**known, "notes": report.fallbacks}

    return bench.made(name, make)


def compared_with_textbook(rows: Sequence[Row]) -> list[Row]:
    return compared_with_base([{"base": BASE if _SAME_FORM.fullmatch(row["name"]) else None, **row} for row in rows])


MEASURE = small_models.measure(
    "prune",
    methods,
    measure,
    Listing(
        Column("row", "name"),
        Column("packed, MB", lambda row: row["bytes"] / 1e6, ".1f"),
        Column("bits a weight, stored", "bits", ".3f"),
        Column("zeros", percent("sparsity", 0)),
        Column("gap", "gap", ".3f"),
        Column("share of textbook SparseGPT's", percent("of base", 0)),
        order=lambda row: -row["bytes"],
        prepare=compared_with_textbook,
    ),
    24,
    option("--recover", type=minutes, default=8, metavar="MINUTES", help="minutes of retraining, default: 8"),
    option("--recovery-samples", type=int, default=400, help="sequences to retrain on, default: 400"),
)
