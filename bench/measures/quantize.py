"""Measure what quantising costs: perplexity, KL divergence and stored bytes of each recipe, compared with rounding.

Calibration text is text/wiki.calibration.raw, evaluation text is text/wiki.eval.raw, and the model is that of
small_models.py. --rival PYTHON, the interpreter of an environment with llmcompressor, adds a row of that package, which
calibrates on the same tokens. `base` names the row of rounding to nearest (whole ranges, no clipping) with the same
bits, groups and symmetry, or the row itself. A stopped run continues with its last block; `seconds` are those of its
last part.
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
from bench.shared.small_models import OPTIONS, Bench, bytes_of, compared_with_base
from bench.tables import Column, Listing, percent
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.quant.gptq import GPTQ
from squeeze.quant.rtn import RTN
from squeeze.quant.trellis.method import Trellis
from squeeze.recipes.tokens import calibration_tokens

GROUP = 64


def rows(options: argparse.Namespace) -> Iterator[Row]:
    bench = Bench(options, "quantize")
    yield from bench.run(recipes(with_rival=options.rival is not None), lambda name: measure(bench, name))


def recipes(with_rival: bool = False) -> dict[str, tuple]:
    """Return a method, the name of the row it is compared with, and options of squeeze.quantize, by row name."""
    sym, asym = ({"group_size": GROUP, "symmetric": symmetric} for symmetric in (True, False))
    found = {
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
    if with_rival:
        found["llm-compressor-sym-4"] = None, "rtn-sym-4", {"bits": 4, "asym": False}
    return found


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
    method, base, options = recipes(with_rival=True)[name]
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
    time=25,
    options=(
        *OPTIONS,
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
