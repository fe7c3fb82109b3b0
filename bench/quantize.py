"""What quantising costs: perplexity, KL divergence and stored bytes of each recipe, beside rounding on the same grid.

SQUEEZE_CORPUS=CORPUS python bench/quantize.py WORK [--rows rtn4,gptq4] [--samples 128] [--windows 8]

Imports the bundled SmolLM2-135M as bf16 into WORK, calibrates on text/wiki.calibration.raw and measures on
text/wiki.eval.raw. Every row is added to WORK/quantize.jsonl when it is done, and rows that are there are not measured
again. Rows named llm-compressor-... need --rival PYTHON, the interpreter of an environment that has llmcompressor; it
calibrates on the same tokens. `gap` is the logarithm of perplexity above the original's; the last column is its share
of the gap that rounding to nearest (whole ranges, no clipping) has with the same bits, groups and symmetry.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import torch

import squeeze
from squeeze.lm.models import bundled_path
from squeeze.model.calibration import calibration_tokens
from squeeze.model.checkpoint import Checkpoint
from squeeze.model.evaluate import evaluate, load_model, read_tokens
from squeeze.model.gguf import import_gguf
from squeeze.quant.gptq import GPTQ
from squeeze.quant.rtn import RTN

GROUP = 64


def rows() -> dict[str, tuple]:
    """By name: a method, the name of the row it is compared with, and options of squeeze.quantize."""
    found = {}
    for bits in (4, 3, 2):
        for kind in ("sym", "asym"):
            grid = {"bits": bits, "group_size": GROUP, "symmetric": kind == "sym"}
            base = f"rtn-{kind}-{bits}"
            more = {"refine": 3} if bits == 2 else {}
            found[base] = RTN(**grid, clip=False), base, {}
            found[f"rtn-clip-{kind}-{bits}"] = RTN(**grid), base, {}
            found[f"gptq-textbook-{kind}-{bits}"] = GPTQ.textbook(**grid), base, {"correction": 0.0}
            found[f"gptq-order-{kind}-{bits}"] = (
                GPTQ(**grid, clip=False, refine=0), base, {"correction": 0.0},
            )  # fmt: skip
            found[f"gptq-refined-{kind}-{bits}"] = GPTQ(**grid, **more), base, {"correction": 0.0}
            found[f"gptq-{kind}-{bits}"] = GPTQ(**grid, **more), base, {}
            found[f"gptq-rotated-{kind}-{bits}"] = GPTQ(**grid, **more), base, {"rotate": True}
    for grid in ("nf4", "mxfp4", "nvfp4", "ternary", "ternary-planes"):
        found[f"rtn-{grid}"] = RTN(grid=grid, group_size=GROUP), f"rtn-{grid}", {}
        found[f"gptq-{grid}"] = GPTQ(grid=grid, group_size=GROUP), f"rtn-{grid}", {}
    asym = {"group_size": GROUP, "symmetric": False}
    found["gptq-asym-target-3.5"] = GPTQ(bits=4, **asym), "rtn-asym-3", {"target_bits": 3.5}
    found["gptq-asym-depth-3.5"] = GPTQ(bits=3, **asym), "rtn-asym-3", {"by_depth": 3.5}
    for bits in (4, 3):
        for kind in ("sym", "asym"):
            found[f"llm-compressor-{kind}-{bits}"] = None, f"rtn-{kind}-{bits}", {"bits": bits, "asym": kind == "asym"}
    found["gptq-out-of-domain-sym-4"] = GPTQ(bits=4, group_size=GROUP), "rtn-sym-4", {"calibration": "enwik8.1m"}
    return found


def by_depth(folder: Path, method: GPTQ, bits: float) -> dict[str, GPTQ]:
    """4 bits for as many of the first blocks as make so many stored bits a weight, 3 for the others."""
    blocks = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    side = 19 / GROUP, 20 / GROUP  # a scale of 16 bits and a zero point
    first = int(blocks * (bits - 3 - side[0]) / (1 + side[1] - side[0]))
    leaves = [f"self_attn.{p}_proj" for p in "qkvo"] + [f"mlp.{p}_proj" for p in ("gate", "up", "down")]
    return {f"model.layers.{i}.{leaf}": method.replaced(bits=4) for i in range(first) for leaf in leaves}


def rival(
    args: argparse.Namespace, folder: Path, calibration: Path, out: Path, bits: int, asym: bool
) -> tuple[float, list[str], int]:
    """llm-compressor's folder as `out`; bits a weight, fallbacks (it names none), bytes."""
    if args.rival is None:
        raise SystemExit("Error: rows of llm-compressor need --rival PYTHON")
    tokens = calibration_tokens(folder, calibration, args.samples, 512, 0)
    np.save(args.work / "tokens.npy", tokens.numpy())
    script = Path(__file__).with_name("quantize_llmcompressor.py")
    command = [args.rival, script, folder, args.work / "tokens.npy", out, f"--bits={bits}", f"--group-size={GROUP}"]
    command += [f"--threads={args.threads}", *(["--asym"] if asym else [])]
    subprocess.run(list(map(str, command)), check=True)
    shutil.copyfile(folder / "tokenizer.json", out / "tokenizer.json")
    made, weights = Checkpoint.open(out), 0
    packed = [name for name in made.files if name.rpartition(".")[2].startswith("weight_")]
    for name in packed:
        if name.endswith("weight_shape"):
            rows_and_columns = made.load([name])[name].tolist()
            weights += rows_and_columns[0] * rows_and_columns[1]
    stored = made.bytes_of(name for name in packed if not name.endswith("weight_shape"))
    return 8 * stored / weights, [], stored


def measure(args: argparse.Namespace, folder: Path, texts: Path, name: str, original: dict) -> dict:
    method, _, options = rows()[name]
    options = dict(options)
    calibration = texts / options.pop("calibration", "wiki.calibration.raw")
    out, started = args.work / f"out-{name}", time.perf_counter()
    if method is None:
        bits, fallbacks, stored = rival(args, folder, calibration, out, **options)
    else:
        if "by_depth" in options:
            options["methods"] = by_depth(folder, method, options.pop("by_depth"))
        given = {"samples": args.samples, "format": "dense", "overwrite": True, **options}
        report = squeeze.quantize(folder, method, out=out, calibration=calibration, **given)
        bits, fallbacks = report.bits_per_weight, report.fallbacks
        stored = sum(round(layer.bits * layer.shape[0] * layer.shape[1] / 8) for layer in report.layers)
    seconds = time.perf_counter() - started
    tokens = read_tokens(texts / "wiki.eval.raw", folder)
    reference = load_model(folder) if args.kl else None
    found = evaluate(load_model(out), tokens, windows=args.windows, original=reference)
    shutil.rmtree(out)
    gap = math.log(found.perplexity / original["perplexity"])
    return {
        **{"name": name, "samples": args.samples, "windows": args.windows, "bits": bits},
        **{"bytes": stored, "perplexity": found.perplexity, "gap": gap, "kl": found.kl_mean, "kl_p99": found.kl_p99},
        **{"top1": found.top1_agreement, "seconds": round(seconds), "fallbacks": fallbacks},
    }


def table(found: dict[str, dict]) -> None:
    print("| recipe | bits a weight | bytes | perplexity | gap | KL | same top | of RTN's gap |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for name, (_, base, _) in rows().items():
        if name not in found:
            continue
        row = found[name]
        share = f"{100 * row['gap'] / found[base]['gap']:.0f} %" if base in found else ""
        kl, top = (f"{row[key]:.3f}" if row[key] is not None else "" for key in ("kl", "top1"))
        print(f"| {name} | {row['bits']:.3f} | {row['bytes']} | {row['perplexity']:.2f} ", end="")
        print(f"| {row['gap']:.3f} | {kl} | {top} | {share} |")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("--rows", default=",".join(rows()))
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--windows", type=int)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rival", help="an interpreter that has llmcompressor")
    parser.add_argument("--kl", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    texts = Path(os.environ["SQUEEZE_CORPUS"]) / "text"
    args.work.mkdir(exist_ok=True, parents=True)
    folder, log = args.work / "original", args.work / "quantize.jsonl"
    if not folder.is_dir():
        import_gguf(bundled_path(), folder)
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
    same = {"samples": args.samples, "windows": args.windows}
    found = {line["name"]: line for line in lines if {key: line.get(key) for key in same} == same}

    def keep(line: dict) -> None:
        found[line["name"]] = line
        with log.open("a") as file:
            file.write(json.dumps({**same, **line}) + "\n")

    if "original" not in found:
        tokens = read_tokens(texts / "wiki.eval.raw", folder)
        keep({"name": "original", **evaluate(load_model(folder), tokens, windows=args.windows).as_json()})
    print(f"original: perplexity {found['original']['perplexity']:.3f} on {found['original']['tokens']} tokens")
    for name in args.rows.split(","):
        if name not in found:
            keep(measure(args, folder, texts, name, found["original"]))
            row = found[name]
            print(f"{name}: gap {row['gap']:.3f}, {row['bits']:.3f} bits, {row['seconds']} s", flush=True)
    table(found)


if __name__ == "__main__":
    main()
