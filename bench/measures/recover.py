"""Measure what recovery brings: gap and KL of a quantised model before and after training, at the same bytes.

Calibration text is text/wiki.calibration.raw, evaluation text is text/wiki.eval.raw, and the model is that of
small_models.py. A row without a recipe of training is the result of quantize or prune as it is; every other row trains
that of its `base`, with one seed. Quantised folders are kept in WORK for later rows.

Quantising sees few sequences, and training others: each step reads one that no step has read before. A few steps on
short sequences show what a way of training brings compared with another. Longer runs win back more.
"""

from pathlib import Path
from typing import Any

import squeeze
from bench.measure import Row, minutes, option
from bench.shared import small_models
from bench.shared.small_models import Bench, compared_with_base
from bench.tables import Column, Listing, percent
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.prune.sparsegpt import SparseGPT
from squeeze.quant.gptq import GPTQ

GROUP = 64
LENGTH = 256  # tokens of a sequence, of which a step reads one
SEQUENCES = 256  # to train on
BASES: dict[str, Any] = {
    "gptq-asym-2": GPTQ(bits=2, group_size=GROUP, symmetric=False),
    "gptq-asym-3": GPTQ(bits=3, group_size=GROUP, symmetric=False),
    "sparsegpt-2:4+4": SparseGPT(quantizer=GPTQ(bits=4, group_size=GROUP)),
}
TRAININGS: dict[str, dict[str, Any]] = {"scales": {}, "codes": {"codes": "move"}}
ROWS = [row for base in BASES for row in (base, f"{base}, scales")] + ["gptq-asym-2, codes"]


def quantised(bench: Bench, base: str) -> Path:
    """Return the folder that a row of `base` trains. It is made if it is missing."""
    out, method = bench.work / f"base-{base.replace(':', '-')}", BASES[base]
    if not out.is_dir():
        shared = bench.given(out) | {"resume": True}
        if isinstance(method, GPTQ):
            squeeze.quantize(bench.original, method, format="squeeze", **shared)
        else:
            squeeze.prune(bench.original, method, **shared)
    return out


def recovered(bench: Bench, base: str, training: str, out: Path) -> Row:
    """Train the folder of a base, and return the steps and the divergence on held-out sequences."""
    length = {"minutes": bench.args.minutes} if bench.args.minutes else {"steps": bench.args.steps}
    sequences = {"samples": SEQUENCES, "sequence_length": LENGTH}
    given = bench.given(out) | sequences | length | TRAININGS[training]
    report = squeeze.recover(quantised(bench, base), base=bench.original, **given)
    found = report.settings["recovery"]
    return {"steps": found["steps"], "held_out_kl": found["kl"]}


def measure(bench: Bench, name: str) -> Row:
    base, _, training = name.partition(", ")
    source = quantised(bench, base)
    checkpoint = Checkpoint.open(source)
    known = {"base": base, "bytes": checkpoint.bytes_of(checkpoint.files)}
    if not training:
        return {**known, **bench.quality(source)}

    return bench.made(name, lambda out: known | recovered(bench, base, training, out))


MEASURE = small_models.measure(
    "recover",
    lambda: ROWS,
    measure,
    Listing(
        Column("row", "name"),
        Column("sequences", "samples"),
        Column("steps", "steps"),
        Column("gap", "gap", ".3f"),
        Column("KL", "kl", ".3f"),
        Column("share of the gap before", percent("of base", 0)),
        prepare=compared_with_base,
    ),
    12,
    option("--steps", type=int, default=64, help="steps of training, default: 64"),
    option("--minutes", type=minutes, help="minutes of training, in place of steps"),
)
