"""Measure what factorising costs: perplexity, KL divergence and stored bytes for every family, compared with GPTQ.

Calibration text is text/wiki.calibration.raw, evaluation text is text/wiki.eval.raw, and the model is that of
small_models.py. `textbook` is SVD-LLM as published: two factors, one ratio for all matrices, no error propagation.
`bytes` are those of the blocks' matrices, `packed` those of all tensors after `squeeze pack`. A healed row continues
from the row that it names.
"""

import shutil
from pathlib import Path
from typing import Any

import squeeze
from bench.measure import Row, minutes, option
from bench.shared import small_models
from bench.shared.small_models import Bench, bytes_of
from bench.tables import Column, Listing
from squeeze.engine.report import Report
from squeeze.factor.lowrank import WhitenedSVD
from squeeze.factor.methods import METHODS
from squeeze.quant.gptq import GPTQ
from squeeze.recipes.tokens import calibration_tokens
from squeeze.recipes.train.distil import Training
from squeeze.recipes.train.retrain import heal

KEEP = 0.9


def recipes() -> dict[str, dict[str, Any]]:
    """Return the options of squeeze.factorize by row name. Rows with `quantize` are options of squeeze.quantize."""
    return {
        "textbook": {"method": WhitenedSVD.textbook(KEEP), "correction": 0.0},
        **{name: {"method": name, "keep": KEEP} for name in (*METHODS, "modegpt")},
        "plan": {"keep": KEEP},
        "plan-healed": {"heal": "plan"},
        "plan-0.85+gptq4": {"keep": 0.85, "bits": 4, "pack": True},
        "gptq-4": {"quantize": GPTQ(bits=4, group_size=64), "pack": True, "format": "squeeze"},
    }


def write_folder(bench: Bench, name: str, out: Path) -> Row:
    """Write the folder of a row, and return its bytes and fallbacks."""
    options = recipes()[name]
    if "heal" in options:
        return heal_copy(bench, bench.work / f"out-{options['heal']}", out)
    packed = options.pop("pack", False)
    if "quantize" in options:
        report = squeeze.quantize(bench.original, options.pop("quantize"), **bench.given(out), **options)
    else:
        report = squeeze.factorize(bench.original, **bench.given(out), **options)
    known: Row = {"bytes": bytes_of(report.layers), "fallbacks": report.fallbacks}
    if packed:
        target = out.with_name(f"{out.name}-packed")
        squeeze.pack(out, target, overwrite=True)
        known["packed"] = sum(path.stat().st_size for path in target.glob("*.safetensors"))
        shutil.rmtree(target)
    return known


def heal_copy(bench: Bench, source: Path, out: Path) -> Row:
    shutil.copytree(source, out, dirs_exist_ok=True)
    tokens = calibration_tokens(bench.original, bench.calibration, 400, 512, 0)
    done = heal(bench.original, out, tokens, Training(minutes=bench.args.heal))
    return {"bytes": bytes_of(Report.read(out).layers), "steps": done.steps}


def measure(bench: Bench, name: str) -> Row:
    is_healed = any(row.get("heal") == name for row in recipes().values())
    return bench.made(name, lambda out: write_folder(bench, name, out), is_kept=is_healed)


MEASURE = small_models.measure(
    "factorize",
    recipes,
    measure,
    Listing(
        Column("row", "name"),
        Column("bytes of the blocks", "bytes", ","),
        Column("tensors, packed", "packed", ","),
        Column("gap", "gap", ".3f"),
        order=lambda row: (-(row["bytes"] // 10_000_000), -row["gap"]),
    ),
    8,
    option("--heal", type=minutes, default=5, metavar="MINUTES", help="minutes of training, default: 5"),
)
