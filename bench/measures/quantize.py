"""Measure what quantising costs: perplexity, KL divergence and stored bytes of each recipe, compared with rounding.

Calibration text is text/wiki.calibration.raw, evaluation text is text/wiki.eval.raw, and the model is that of
small_models.py. Rows named llm-compressor-... need --rival PYTHON, the interpreter of an environment with
llmcompressor; it calibrates on the same tokens. `base` names the row of rounding to nearest (whole ranges, no clipping)
with the same bits, groups and symmetry. A stopped run continues with its last block; `seconds` are those of its last
part.
"""

import argparse
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from math import prod
from pathlib import Path

import numpy as np

import squeeze
from bench.measure import Measure, Row, option
from bench.shared.small_models import ADAPTED, OPTIONS, Bench, bytes_of, compared_with_base, with_adapter_suffix
from bench.tables import Column, Listing, percent
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.quant.awq import AWQ
from squeeze.quant.gptq import GPTQ
from squeeze.quant.rtn import RTN
from squeeze.quant.trellis.method import Trellis
from squeeze.recipes.tokens import calibration_tokens

GROUP = 64


def rows(options: argparse.Namespace) -> Iterator[Row]:
    bench = Bench(options, "quantize")
    for row in bench.run(recipes(), lambda name: measure(bench, name)):
        yield row | {field: with_adapter_suffix(row[field], options.adapted) for field in ("name", "base")}


def recipes() -> dict[str, tuple]:
    """Return a method, the name of the row it is compared with, and options of squeeze.quantize, by row name."""
    found = {}
    for bits in (4, 3, 2):
        for kind in ("sym", "asym"):
            found |= on_integers(bits, kind)
    found["rtn-smoothed-sym-4"] = RTN(bits=4, group_size=GROUP), "rtn-sym-4", {"smooth": 0.5}
    for grid in ("nf4", "mxfp4", "nvfp4", "ternary", "ternary-planes"):
        found[f"rtn-{grid}"] = RTN(grid=grid, group_size=GROUP), f"rtn-{grid}", {}
        found[f"gptq-{grid}"] = GPTQ(grid=grid, group_size=GROUP), f"rtn-{grid}", {}
    for bits in (2, 2.25, 3, 3.25):
        found[f"trellis-{bits:g}"] = Trellis(rate=bits), f"rtn-asym-{int(bits)}", {}
    asym = {"group_size": GROUP, "symmetric": False}
    for bits in (4, 3):
        grid = {"bits": bits, "group_size": GROUP, "symmetric": False}
        found[f"awq-asym-{bits}"] = AWQ(**grid), f"rtn-asym-{bits}", {}
        found[f"awq-gptq-asym-{bits}"] = AWQ(**grid, sweep=True), f"rtn-asym-{bits}", {}
        for kind in ("sym", "asym"):
            method = GPTQ(bits=bits, group_size=GROUP, symmetric=kind == "sym")
            found[f"gptq-bound-{kind}-{bits}"] = method, f"rtn-{kind}-{bits}", {"bound": 4.0}
    found["gptq-asym-target-3.5"] = GPTQ(bits=4, **asym), "rtn-asym-3", {"target_bits": 3.5}
    found["gptq-asym-depth-3.5"] = GPTQ(bits=3, **asym), "rtn-asym-3", {"by_depth": 3.5}
    for bits in (4, 3):
        for kind in ("sym", "asym"):
            found[f"llm-compressor-{kind}-{bits}"] = None, f"rtn-{kind}-{bits}", {"bits": bits, "asym": kind == "asym"}
    found["gptq-sym-4-corrected-0.5"] = GPTQ(bits=4, group_size=GROUP), "rtn-sym-4", {"correction": 0.5}
    return found


def on_integers(bits: int, kind: str) -> dict[str, tuple]:
    """Return the rows of one number of bits: rounding, and GPTQ with more and more of its parts.

    Args:
        bits: bits of a code
        kind: "sym" or "asym"
    """
    grid = {"bits": bits, "group_size": GROUP, "symmetric": kind == "sym"}
    base, whole = f"rtn-{kind}-{bits}", GPTQ(**grid, **({"refine": 3} if bits == 2 else {}))
    ordered = GPTQ(**grid, clip=False, refine=0)
    return {
        base: (RTN(**grid, clip=False), base, {}),
        f"rtn-clip-{kind}-{bits}": (RTN(**grid), base, {}),
        f"gptq-textbook-{kind}-{bits}": (GPTQ.textbook(**grid), base, {"correction": 0.0}),
        f"gptq-order-{kind}-{bits}": (ordered, base, {"correction": 0.0}),
        f"gptq-refined-{kind}-{bits}": (whole, base, {"correction": 0.0}),
        f"gptq-{kind}-{bits}": (whole, base, {}),
        f"gptq-smoothed-{kind}-{bits}": (whole, base, {"smooth": 0.2}),
        f"gptq-rotated-{kind}-{bits}": (whole, base, {"rotate": True}),
    }


def by_depth(folder: Path, method: GPTQ, bits: float) -> dict[str, GPTQ]:
    """Return bits by module: 4 in the first blocks, 3 in the others, with a given mean of stored bits per weight."""
    blocks = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    side = 19 / GROUP, 20 / GROUP  # a scale of 16 bits and a zero point
    first = int(blocks * (bits - 3 - side[0]) / (1 + side[1] - side[0]))
    leaves = [f"self_attn.{p}_proj" for p in "qkvo"] + [f"mlp.{p}_proj" for p in ("gate", "up", "down")]
    return {f"model.layers.{i}.{leaf}": method.replaced(bits=4) for i in range(first) for leaf in leaves}


def rival(bench: Bench, out: Path, bits: int, asym: bool) -> tuple[float, int]:
    """Write llm-compressor's folder to `out`, and return its bits per weight and bytes."""
    args = bench.args
    if args.rival is None:
        raise SystemExit("Error: rows of llm-compressor need --rival PYTHON")
    tokens = calibration_tokens(bench.original, bench.calibration, args.samples, 512, 0)
    np.save(bench.work / "tokens.npy", tokens.numpy())
    script = Path(__file__).parents[1] / "shared" / "llm_compressor.py"
    command = [args.rival, script, bench.original, bench.work / "tokens.npy", out, f"--bits={bits}"]
    command += [f"--group-size={GROUP}", f"--threads={args.threads}", *(["--asym"] if asym else [])]
    subprocess.run(list(map(str, command)), check=True)
    shutil.copyfile(bench.original / "tokenizer.json", out / "tokenizer.json")
    made, weights = Checkpoint.open(out), 0
    packed = [name for name in made.files if name.rpartition(".")[2].startswith("weight_")]
    original = Checkpoint.open(bench.original)
    for name in packed:
        if name.endswith("weight_shape"):
            weights += prod(original.info(name.removesuffix("_shape")).shape)
    stored = made.bytes_of(name for name in packed if not name.endswith("weight_shape"))
    return 8 * stored / weights, stored


def measure(bench: Bench, name: str) -> Row:
    method, base, options = recipes()[name]
    out, started, fallbacks = bench.work / f"out-{name}", time.perf_counter(), []
    if method is None:
        bits, stored = rival(bench, out, **options)
    else:
        if "by_depth" in options:
            options["methods"] = by_depth(bench.original, method, options.pop("by_depth"))
        given = {"samples": bench.args.samples, "format": "dense", "overwrite": True, "resume": True, **options}
        report = squeeze.quantize(bench.original, method, out=out, calibration=bench.calibration, **given)
        bits, stored, fallbacks = report.bits_per_weight, bytes_of(report.layers), report.fallbacks
    seconds = round(time.perf_counter() - started)
    found = bench.quality(out)
    shutil.rmtree(out)
    return {"base": base, "bits": bits, "bytes": stored, **found, "seconds": seconds, "fallbacks": fallbacks}


MEASURE = Measure(
    rows,
    key=("name", "samples", "windows"),
    needs=("a corpus", "the bundled model"),
    rivals=("llmcompressor",),
    time=300,
    options=(
        *OPTIONS,
        ADAPTED,
        option("--rival", type=Path, metavar="PYTHON", help="Python interpreter of an environment with llmcompressor"),
    ),
    tables={
        "quantize": Listing(
            (
                Column("row", "name"),
                Column("sequences", "samples"),
                Column("bits a weight", "bits", ".3f"),
                Column("gap", "gap", ".3f"),
                Column("share of rounding's gap", percent("of base", 0)),
            ),
            prepare=compared_with_base,
        )
    },
)
