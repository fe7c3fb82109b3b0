"""Measure what quantising costs: perplexity, KL divergence and stored bytes of each recipe, compared with rounding.

Calibration text is text/wiki.calibration.raw, evaluation text is text/wiki.eval.raw, and the model is that of
small_models.py. `base` names the row of rounding to nearest (whole ranges, no clipping) with the same bits, groups and
symmetry, or the row itself. A stopped run continues with its last block; `seconds` are those of its last part.
"""

import json
from pathlib import Path

import squeeze
from bench.measure import Row
from bench.shared import small_models
from bench.shared.small_models import Bench, bytes_of, compared_with_base
from bench.tables import Column, Listing, percent
from squeeze.quant.gptq import GPTQ
from squeeze.quant.rtn import RTN
from squeeze.quant.trellis.method import Trellis

GROUP = 64


def recipes() -> dict[str, tuple]:
    """Return a method, the name of the row it is compared with, and options of squeeze.quantize, by row name."""
    sym, asym = ({"group_size": GROUP, "symmetric": symmetric} for symmetric in (True, False))
    return {
        "rtn-sym-4": (RTN(bits=4, clip=False, **sym), "rtn-sym-4", {}),
        "gptq-textbook-sym-4": (GPTQ.textbook(bits=4, **sym), "rtn-sym-4", {"correction": 0.0}),
        "gptq-order-sym-4": (GPTQ(bits=4, clip=False, refine=0, **sym), "rtn-sym-4", {"correction": 0.0}),
        "gptq-refined-sym-4": (GPTQ(bits=4, **sym), "rtn-sym-4", {"correction": 0.0}),
        "gptq-sym-4": (GPTQ(bits=4, **sym), "rtn-sym-4", {}),
        "gptq-rotated-sym-4": (GPTQ(bits=4, **sym), "rtn-sym-4", {"rotate": True}),
        "rtn-asym-4": (RTN(bits=4, clip=False, **asym), "rtn-asym-4", {}),
        "gptq-asym-4": (GPTQ(bits=4, **asym), "rtn-asym-4", {}),
        "gptq-mxfp4": (GPTQ(grid="mxfp4", group_size=GROUP), "gptq-mxfp4", {}),
        "gptq-nvfp4": (GPTQ(grid="nvfp4", group_size=GROUP), "gptq-nvfp4", {}),
        "gptq-asym-depth-3.5": (GPTQ(bits=3, **asym), "gptq-asym-depth-3.5", {"by_depth": 3.5}),
        "gptq-asym-target-3.5": (GPTQ(bits=4, **asym), "gptq-asym-target-3.5", {"target_bits": 3.5}),
        "gptq-asym-2": (GPTQ(bits=2, refine=3, **asym), "gptq-asym-2", {}),
        "trellis-2": (Trellis(rate=2), "trellis-2", {}),
    }


def by_depth(folder: Path, method: GPTQ, bits: float) -> dict[str, GPTQ]:
    """Return bits by module: 4 in the first blocks, 3 in the others, with a given mean of stored bits per weight."""
    blocks = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    side = 19 / GROUP, 20 / GROUP  # a scale of 16 bits and a zero point
    first = int(blocks * (bits - 3 - side[0]) / (1 + side[1] - side[0]))
    leaves = [f"self_attn.{p}_proj" for p in "qkvo"] + [f"mlp.{p}_proj" for p in ("gate", "up", "down")]
    return {f"model.layers.{i}.{leaf}": method.replaced(bits=4) for i in range(first) for leaf in leaves}


def measure(bench: Bench, name: str) -> Row:
    method, base, options = recipes()[name]
    if "by_depth" in options:
        options["methods"] = by_depth(bench.original, method, options.pop("by_depth"))

    def make(out: Path) -> Row:
        given = bench.given(out) | {"format": "dense", "resume": True, **options}
        report = squeeze.quantize(bench.original, method, **given)
        stored = {"bits": report.bits_per_weight, "bytes": bytes_of(report.layers)}
        return {"base": base, **stored, "fallbacks": report.fallbacks}

    return bench.made(name, make)


MEASURE = small_models.measure(
    "quantize",
    recipes,
    measure,
    Listing(
        Column("row", "name"),
        Column("sequences", "samples"),
        Column("bits a weight", "bits", ".3f"),
        Column("gap", "gap", ".3f"),
        Column("share of rounding's gap", percent("of base", 0)),
        prepare=compared_with_base,
    ),
    samples=24,
)
