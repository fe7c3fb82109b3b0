"""What factorising costs: perplexity and KL divergence against stored bytes, for every family, with GPTQ as yardstick.

SQUEEZE_CORPUS=CORPUS python bench/factorize.py WORK [--rows plan-0.9,tt-0.9] [--samples 24] [--windows 4]
    [--kl] [--plot gap.png]

Imports the bundled SmolLM2-135M as bf16 into WORK, calibrates on text/wiki.calibration.raw and measures on
text/wiki.eval.raw. Every row is added to WORK/factorize.jsonl when it is done, and rows that are there are not measured
again. `gap` is the logarithm of perplexity above the original's. textbook is SVD-LLM as published: two factors, one
ratio for all, no correction; bytes are of the blocks' matrices as they are stored, `packed` of the whole folder after
`squeeze pack`. A healed row goes on from the row it names.
"""

import argparse
import json
import math
import os
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

import squeeze
from squeeze.factor.api import METHODS
from squeeze.lm.models import bundled_path
from squeeze.model.calibration import calibration_tokens
from squeeze.model.evaluate import evaluate, load_model, read_tokens
from squeeze.model.gguf import import_gguf
from squeeze.model.heal import heal
from squeeze.prune.lowrank import WhitenedSVD
from squeeze.quant.gptq import GPTQ

KEEPS = (0.9, 0.8)
HEALED = 20  # minutes


def rows() -> dict[str, dict[str, Any]]:
    """Options of squeeze.factorize (or, with `quantize`, of squeeze.quantize) by name of the row."""
    found: dict[str, dict[str, Any]] = {}
    for keep in KEEPS:
        found[f"textbook-{keep}"] = {"method": WhitenedSVD.textbook(keep), "correction": 0.0}
        found |= {f"{name}-{keep}": {"method": name, "keep": keep} for name in (*METHODS, "modegpt", "slicegpt")}
        found[f"plan-singles-{keep}"] = {"keep": keep, "pairs": False}
        found[f"plan-{keep}"] = {"keep": keep}
        found[f"plan-{keep}-healed"] = {"heal": f"plan-{keep}"}
    found["plan-0.85+gptq4"] = {"keep": 0.85, "bits": 4, "pack": True}
    for bits in (8, 4, 3):
        grid = GPTQ(bits=bits, group_size=64)
        found[f"gptq-{bits}"] = {"quantize": grid, "pack": bits < 8, "format": "squeeze"}
    return found


def made(args: argparse.Namespace, folder: Path, name: str, out: Path) -> dict:
    """Write the folder of a row; what is known of it."""
    options = rows()[name]
    shared = {"calibration": args.texts / "wiki.calibration.raw", "samples": args.samples, "overwrite": True}
    if "heal" in options:
        shutil.copytree(args.work / f"out-{options['heal']}", out, dirs_exist_ok=True)
        tokens = calibration_tokens(folder, shared["calibration"], 400, 256, 7)
        done = heal(folder, out, tokens, minutes=args.heal, batch=2)
        before = json.loads((out / "compression_report.json").read_text())
        return {
            "bytes": bytes_of(before["layers"]),
            "steps": done.steps,
            "losses": done.losses[:: done.steps // 9 or 1],
        }
    packed = options.pop("pack", False)
    if "quantize" in options:
        report = squeeze.quantize(folder, options.pop("quantize"), out=out, **shared, **options)
    else:
        report = squeeze.factorize(folder, out=out, **shared, **options)
    known: dict[str, Any] = {"bytes": bytes_of(report.as_json()["layers"]), "fallbacks": report.fallbacks}
    plan = json.loads((out / "config.json").read_text()).get("quantization_config", {}).get("plan") or {}
    known["families"] = Counter(row["family"] for row in plan.values())
    if packed:
        target = out.with_name(f"{out.name}-packed")
        squeeze.pack(out, target, overwrite=True)
        known["packed"] = sum(path.stat().st_size for path in target.glob("*.safetensors"))
        shutil.rmtree(target)
    return known


def bytes_of(layers: list[dict]) -> int:
    return sum(round(layer["bits"] * layer["shape"][0] * layer["shape"][1] / 8) for layer in layers)


def measure(args: argparse.Namespace, folder: Path, name: str, original: dict) -> dict:
    out, started = args.work / f"out-{name}", time.perf_counter()
    known = made(args, folder, name, out)
    seconds = time.perf_counter() - started
    reference = load_model(folder) if args.kl else None
    tokens = read_tokens(args.texts / "wiki.eval.raw", folder)
    found = evaluate(load_model(out), tokens, windows=args.windows, original=reference)
    if not any(row.get("heal") == name for row in rows().values()):
        shutil.rmtree(out)
    gap = math.log(found.perplexity / original["perplexity"])
    return {**known, "name": name, "perplexity": found.perplexity, "gap": gap, "kl": found.kl_mean, "seconds": seconds}


def table(found: dict[str, dict]) -> None:
    print("| recipe | bytes of matrices | packed folder | perplexity | gap | KL | families in the plan |")
    print("|---|--:|--:|--:|--:|--:|---|")
    for name in rows():
        if name in found:
            row = found[name]
            kl = f"{row['kl']:.3f}" if row["kl"] is not None else ""
            mix = ", ".join(f"{count} {family}" for family, count in (row.get("families") or {}).items())
            print(f"| {name} | {row['bytes']:,} | {row.get('packed', '')} | {row['perplexity']:.2f} ", end="")
            print(f"| {row['gap']:.3f} | {kl} | {mix} |")


def plot(found: dict[str, dict], target: Path) -> None:
    """The gap against stored bytes, a line for each family."""
    import matplotlib.pyplot as plt

    lines: dict[str, list[tuple[int, float]]] = {}
    for name in rows():
        if name in found:
            family = name.replace("-0.9", "").replace("-0.8", "").removesuffix("5+gptq4")
            family = "gptq" if name.startswith("gptq") else family
            lines.setdefault(family, []).append((found[name]["bytes"], found[name]["gap"]))
    figure, axes = plt.subplots(figsize=(8, 5))
    for family, points in lines.items():
        axes.plot(*zip(*sorted(points), strict=True), marker="o", label=family)
    axes.set(xlabel="stored bytes of the blocks' matrices", ylabel="gap, nats a token", yscale="log")
    axes.legend(fontsize=8)
    figure.savefig(target, dpi=150, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("--rows", default=",".join(rows()))
    parser.add_argument("--samples", type=int, default=24)
    parser.add_argument("--windows", type=int)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--heal", type=float, default=HEALED, metavar="MINUTES")
    parser.add_argument("--kl", action="store_true")
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.texts = Path(os.environ["SQUEEZE_CORPUS"]) / "text"
    args.work.mkdir(exist_ok=True, parents=True)
    folder, log = args.work / "original", args.work / "factorize.jsonl"
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
        tokens = read_tokens(args.texts / "wiki.eval.raw", folder)
        keep({"name": "original", **evaluate(load_model(folder), tokens, windows=args.windows).as_json()})
    print(f"original: perplexity {found['original']['perplexity']:.3f} on {found['original']['tokens']} tokens")
    for name in args.rows.split(","):
        if name not in found:
            keep(measure(args, folder, name, found["original"]))
            row = found[name]
            print(f"{name}: gap {row['gap']:.3f}, {row['bytes']} bytes, {row['seconds']:.0f} s", flush=True)
    table(found)
    if args.plot:
        plot(found, args.plot)


if __name__ == "__main__":
    main()
