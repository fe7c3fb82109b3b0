"""What pruning costs: gap, KL divergence and stored bytes of each way, beside textbook forms and GPTQ in as many bytes.

SQUEEZE_CORPUS=CORPUS python bench/prune.py WORK [--rows magnitude,sparsegpt] [--samples 24] [--windows 8] [--kl]

Imports the bundled SmolLM2-135M as bf16 into WORK, calibrates on text/wiki.calibration.raw and measures on
text/wiki.eval.raw. Every row is added to WORK/prune.jsonl when it is done, and rows that are there are not measured
again. `gap` is the logarithm of perplexity above the original's. Bits are those of the blocks' matrices as they are
stored; bytes those of the whole folder after `squeeze pack`, for sparse and quantised models alike. Every sparse
folder is first checked: the pattern in each group, and that it unpacks to the same bytes.

--layer N instead compares the methods on three matrices of block N, whose inputs are the original's: bits a weight as
stored, and the squared error of the outputs as a share of their square. That takes a minute where rows take many.
"""

import argparse
import json
import math
import os
import shutil
import time
from pathlib import Path

import torch

import squeeze
from squeeze.lm.models import bundled_path
from squeeze.model.calibration import Statistics, calibration_tokens, record
from squeeze.model.checkpoint import Checkpoint
from squeeze.model.evaluate import evaluate, load_model, read_tokens
from squeeze.model.gguf import import_gguf
from squeeze.model.method import layer_error
from squeeze.model.network import Network, run_block, weight_of
from squeeze.model.report import Report
from squeeze.prune.api import prune, recovered
from squeeze.prune.magnitude import Magnitude
from squeeze.prune.pattern import Pattern
from squeeze.prune.slim import SLiM
from squeeze.prune.sparse24 import SparseFormat
from squeeze.prune.sparsegpt import SparseGPT
from squeeze.prune.wanda import Wanda
from squeeze.quant.gptq import GPTQ

PLAIN = {"correction": 0.0}
INT4 = GPTQ(bits=4, group_size=128)
BASE = "sparsegpt-textbook"  # whose gap the others' are compared with
REFINED = "sparsegpt-refined"  # without the correction for earlier errors, which a single layer has not
LEAVES = ("self_attn.q_proj", "mlp.up_proj", "mlp.down_proj")


def rows() -> dict[str, tuple]:
    """By name: a method, and options of squeeze.prune or, for GPTQ, of squeeze.quantize."""
    found = {
        "magnitude": (Magnitude(), {}),
        "wanda": (Wanda(), PLAIN),
        BASE: (SparseGPT.textbook(), PLAIN),
        REFINED: (SparseGPT(), PLAIN),
        "sparsegpt": (SparseGPT(), {}),
        "sparsegpt-fully-corrected": (SparseGPT(), {"correction": 1.0, "permute": True}),
        "sparsegpt-permuted": (SparseGPT(), {"permute": True}),
        "sparsegpt-recovered": (SparseGPT(), {"permute": True, "recover": 20.0}),
        "int4-textbook": (SparseGPT.textbook(quantizer=GPTQ.textbook(bits=4, group_size=128)), PLAIN),
        "int4": (SparseGPT(quantizer=INT4), {}),
        "int4-slim": (SLiM(base=SparseGPT(quantizer=INT4.replaced(group_size=-1)), rank=0.01), {}),
        "int3": (SparseGPT(quantizer=INT4.replaced(bits=3)), {}),
    }
    for text in ("4:8", "6:8", "50%", "70%"):
        found[f"sparsegpt-{text}"] = SparseGPT(pattern=Pattern.parse(text)), {}
    for bits in (4, 3, 2):
        found[f"gptq-{bits}"] = GPTQ(bits=bits, group_size=64), {}
    return found


def compress(args: argparse.Namespace, folder: Path, name: str, out: Path, calibration: Path) -> Report:
    method, options = rows()[name]
    shared = {"out": out, "calibration": calibration, "samples": args.samples, "overwrite": True}
    if isinstance(method, GPTQ):
        return squeeze.quantize(folder, method, format="squeeze", **shared, **options)
    options = dict(options)
    minutes = options.pop("recover", None)
    report = prune(folder, method, **shared, **options)
    if minutes:
        report = recovered(folder, out, minutes=minutes, calibration=calibration, samples=args.recovery_samples)
    return report


def check(out: Path, packed: Path) -> int:
    """The bytes of a folder after packing, once it has been found to unpack to itself and to hold to its patterns."""
    coded = squeeze.pack(out, packed).coded
    again = packed.with_name(f"{packed.name}.again")
    squeeze.unpack(packed, again)
    checkpoint, form = Checkpoint.open(out), SparseFormat()
    assert (again / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()
    for module in (name.removesuffix(".sparse_grid") for name in checkpoint.files if name.endswith(".sparse_grid")):
        stored = checkpoint.load((n for n in checkpoint.files if n.startswith(f"{module}.")), strict=False)
        weight = form.weight(module, stored)
        assert weight.pattern.violations(weight.sparse()) == 0, module
    shutil.rmtree(packed)
    shutil.rmtree(again)
    return coded


def measure(args: argparse.Namespace, folder: Path, texts: Path, name: str, original: dict) -> dict:
    out, started = args.work / f"out-{name.replace(':', '-')}", time.perf_counter()
    report = compress(args, folder, name, out, texts / "wiki.calibration.raw")
    seconds = time.perf_counter() - started
    coded = check(out, args.work / "packed")
    tokens = read_tokens(texts / "wiki.eval.raw", folder)
    reference = load_model(folder) if args.kl else None
    found = evaluate(load_model(out), tokens, windows=args.windows, original=reference)
    shutil.rmtree(out)
    return {
        **{"name": name, "bits": report.bits_per_weight, "sparsity": report.sparsity, "bytes": coded},
        **{"perplexity": found.perplexity, "gap": math.log(found.perplexity / original["perplexity"])},
        **{"kl": found.kl_mean, "top1": found.top1_agreement, "seconds": round(seconds), "notes": report.fallbacks},
    }


@torch.inference_mode()
def matrices(args: argparse.Namespace, folder: Path, calibration: Path) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The weight and the mean of x x^T of each of LEAVES in the block asked for."""
    network = Network(Checkpoint.open(folder))
    tokens = calibration_tokens(folder, calibration, args.samples, 512, 0)
    hiddens, calls = list(network.first_inputs(tokens)), network.calls(tokens)
    for number in range(args.layer):
        block = network.load(network.blocks[number])
        hiddens = [run_block(block, hidden, calls[number]) for hidden in hiddens]
        network.release(network.blocks[number])
    block, call = network.load(network.blocks[args.layer]), calls[args.layer]
    found = {leaf: Statistics() for leaf in LEAVES}
    for hidden in hiddens:
        for leaf, x in record(block, [(leaf,) for leaf in LEAVES], lambda: run_block(block, hidden, call)).items():  # noqa: B023
            found[leaf].add(x)
    for statistics in found.values():
        statistics.finish()
    return {leaf: (weight_of(block.get_submodule(leaf)).bfloat16(), s.hessian) for leaf, s in found.items()}


def compare(args: argparse.Namespace, folder: Path, calibration: Path) -> None:
    """The table of --layer."""
    given = matrices(args, folder, calibration)
    print(f"| way | bits a weight | {' | '.join(LEAVES)} | seconds |")
    print(f"|---|--:|{'--:|' * len(LEAVES)}--:|")
    for name, (method, options) in rows().items():
        if isinstance(method, GPTQ) or options.get("permute") or method.pattern != Pattern() or name == REFINED:
            continue
        started, bits, errors = time.process_time(), 0, []
        for weight, hessian in given.values():
            found = method.apply(weight, hessian)
            assert found.pattern.violations(found.sparse()) == 0
            bits += 8 * sum(tensor.nbytes for tensor in SparseFormat().tensors("", found).values())
            errors.append(f"{layer_error(weight.float(), found.dequantize(), hessian):.4f}")
        bits /= sum(weight.numel() for weight, _ in given.values())
        seconds = time.process_time() - started
        print(f"| {name} | {bits:.3f} | {' | '.join(errors)} | {seconds:.1f} |", flush=True)


def table(found: dict[str, dict]) -> None:
    """Largest first, so that what is better in fewer bytes stands below what it beats."""
    print("| way | bytes, packed | bits a weight | zeros | perplexity | gap | KL | of SparseGPT's gap |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for row in sorted((found[name] for name in rows() if name in found), key=lambda row: -row["bytes"]):
        share = f"{100 * row['gap'] / found[BASE]['gap']:.0f} %" if BASE in found else ""
        kl = f"{row['kl']:.3f}" if row["kl"] is not None else ""
        print(f"| {row['name']} | {row['bytes']} | {row['bits']:.3f} | {100 * row['sparsity']:.1f} % ", end="")
        print(f"| {row['perplexity']:.2f} | {row['gap']:.3f} | {kl} | {share} |")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("--rows", default=",".join(rows()))
    parser.add_argument("--samples", type=int, default=24)
    parser.add_argument("--recovery-samples", type=int, default=400)
    parser.add_argument("--windows", type=int)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kl", action="store_true")
    parser.add_argument("--layer", type=int)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    texts = Path(os.environ["SQUEEZE_CORPUS"]) / "text"
    args.work.mkdir(exist_ok=True, parents=True)
    folder, log = args.work / "original", args.work / "prune.jsonl"
    if not folder.is_dir():
        import_gguf(bundled_path(), folder)
    if args.layer is not None:
        compare(args, folder, texts / "wiki.calibration.raw")
        return
    same = {"samples": args.samples, "windows": args.windows}
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
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
