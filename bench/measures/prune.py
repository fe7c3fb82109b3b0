"""Measure what pruning costs: gap, KL divergence and stored bytes of each method, compared with textbook forms and
GPTQ.

Calibration text is text/wiki.calibration.raw, evaluation text is text/wiki.eval.raw, and the model is that of
small_models.py. Bits are those of the blocks' matrices as stored; bytes are those of the folder after `squeeze pack`.
Every sparse folder is checked first: the pattern in each group, and that it unpacks to the same bytes.
"""

import argparse
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import squeeze
from bench.measure import Measure, Row, option
from bench.shared.small_models import OPTIONS, Bench, compared_with_base
from bench.tables import Column, Listing, percent
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.pattern import Pattern
from squeeze.checkpoint.sparse import violations
from squeeze.engine.report import Report
from squeeze.prune.scores import Magnitude, Wanda
from squeeze.prune.slim import SLiM
from squeeze.prune.sparse24 import SparseFormat
from squeeze.prune.sparsegpt import SparseGPT
from squeeze.quant.gptq import GPTQ
from squeeze.recipes.prune import prune, recovered

PLAIN = {"correction": 0.0}
INT4 = GPTQ(bits=4, group_size=128)
BASE = "sparsegpt-textbook"  # whose gap the others' are compared with
_SAME_FORM = re.compile(r"(magnitude|wanda|sparsegpt)[^:%]*")  # 2:4 in bf16


def rows(options: argparse.Namespace) -> Iterator[Row]:
    bench = Bench(options, "prune")
    yield from bench.run(methods(), lambda name: measure(bench, name))


def methods() -> dict[str, tuple]:
    """Return a method, and options of squeeze.prune or (for GPTQ) squeeze.quantize, by row name."""
    found = {
        "magnitude": (Magnitude(), {}),
        "wanda": (Wanda(), PLAIN),
        BASE: (SparseGPT.textbook(), PLAIN),
        "sparsegpt-refined": (SparseGPT(), PLAIN),
        "sparsegpt": (SparseGPT(), {}),
        "sparsegpt-fully-corrected": (SparseGPT(), {"correction": 1.0, "permute": True}),
        "sparsegpt-permuted": (SparseGPT(), {"permute": True}),
        "sparsegpt-recovered": (SparseGPT(), {"permute": True, "recover": 20.0}),
        "int4-textbook": (SparseGPT.textbook(quantizer=GPTQ.textbook(bits=4, group_size=128)), PLAIN),
        "int4": (SparseGPT(quantizer=INT4), {}),
        "int4-slim": (SLiM(base=SparseGPT(quantizer=INT4.replaced(group_size=-1)), rank=0.01), {}),
        "int3": (SparseGPT(quantizer=INT4.replaced(bits=3)), {}),
    }
    for share in (0.2, 0.5):
        found[f"sparsegpt-permuted-corrected-{share}"] = SparseGPT(), {"permute": True, "correction": share}
    for text in ("4:8", "6:8", "50%", "70%"):
        found[f"sparsegpt-{text}"] = SparseGPT(pattern=Pattern.parse(text)), {}
    for bits in (4, 3, 2):
        found[f"gptq-{bits}"] = GPTQ(bits=bits, group_size=64), {}
    return found


def compress(bench: Bench, name: str, out: Path) -> Report:
    method, options = methods()[name]
    shared = {"out": out, "calibration": bench.calibration, "samples": bench.args.samples, "overwrite": True}
    if isinstance(method, GPTQ):
        return squeeze.quantize(bench.original, method, format="squeeze", **shared, **options)
    minutes = options.pop("recover", None)
    report = prune(bench.original, method, **shared, **options)
    if minutes:
        more = {"calibration": bench.calibration, "samples": bench.args.recovery_samples}
        report = recovered(bench.original, out, minutes=minutes, **more)
    return report


def check(out: Path, packed: Path) -> int:
    """Return the bytes of a folder after packing. Exits if it does not unpack to itself or violates its patterns."""
    coded = squeeze.pack(out, packed).coded
    again = packed.with_name(f"{packed.name}.again")
    squeeze.unpack(packed, again)
    checkpoint, form = Checkpoint.open(out), SparseFormat()
    assert (again / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()
    for module in (name.removesuffix(".sparse_grid") for name in checkpoint.files if name.endswith(".sparse_grid")):
        stored = checkpoint.load((n for n in checkpoint.files if n.startswith(f"{module}.")), strict=False)
        weight = form.weight(module, stored)
        assert violations(weight.pattern, weight.sparse()) == 0, module
    shutil.rmtree(packed)
    shutil.rmtree(again)
    return coded


def measure(bench: Bench, name: str) -> Row:
    out, started = bench.work / f"out-{name.replace(':', '-')}", time.perf_counter()
    report = compress(bench, name, out)
    seconds = round(time.perf_counter() - started)
    coded = check(out, bench.work / "packed")
    found = bench.quality(out)
    shutil.rmtree(out)
    known = {"bits": report.bits_per_weight, "sparsity": report.sparsity, "bytes": coded, **found}
    return {**known, "seconds": seconds, "notes": report.fallbacks}


def compared_with_textbook(rows: Sequence[Row]) -> list[Row]:
    return compared_with_base([{"base": BASE if _SAME_FORM.fullmatch(row["name"]) else None, **row} for row in rows])


MEASURE = Measure(
    rows,
    key=("name", "samples", "windows"),
    needs=("a corpus", "the bundled model"),
    time=300,
    options=(
        *OPTIONS,
        option("--recovery-samples", type=int, default=400, help="sequences to retrain on, default: 400"),
    ),
    tables={
        "prune": Listing(
            (
                Column("row", "name"),
                Column("packed, MB", lambda row: row["bytes"] / 1e6, ".1f"),
                Column("bits a weight, stored", "bits", ".3f"),
                Column("zeros", percent("sparsity", 0)),
                Column("gap", "gap", ".3f"),
                Column("share of textbook SparseGPT's", percent("of base", 0)),
            ),
            order=lambda row: -row["bytes"],
            prepare=compared_with_textbook,
        )
    },
)
