"""What pruning costs: gap, KL divergence and stored bytes of each way, beside textbook forms and GPTQ in as many bytes.

SQUEEZE_CORPUS=CORPUS python bench/prune.py WORK [--rows magnitude,sparsegpt] [--samples 24] [--windows 8] [--kl]

Calibrates on text/wiki.calibration.raw and measures on text/wiki.eval.raw. The model and the log are rows.py's.
`gap` is the logarithm of perplexity above the original's. Bits are those of the blocks' matrices as they are stored;
bytes those of the whole folder after `squeeze pack`, for sparse and quantised models alike. Every sparse folder is
first checked: the pattern in each group, and that it unpacks to the same bytes.

--layer N instead compares the methods on three matrices of block N, whose inputs are the original's: bits a weight as
stored, and the squared error of the outputs as a share of their square. That takes a minute where rows take many.
"""

import shutil
import time
from pathlib import Path

import torch
from rows import Bench, Row, column, parser

import squeeze
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.pattern import Pattern
from squeeze.engine.calibration import InputStatistics, record
from squeeze.engine.method import layer_error
from squeeze.engine.network import Network, run_block, weight_of
from squeeze.engine.report import Report
from squeeze.prune.magnitude import Magnitude
from squeeze.prune.slim import SLiM
from squeeze.prune.sparse24 import SparseFormat
from squeeze.prune.sparsegpt import SparseGPT
from squeeze.prune.wanda import Wanda
from squeeze.quant.gptq import GPTQ
from squeeze.recipes.prune import prune, recovered
from squeeze.recipes.tokens import calibration_tokens

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
    for share in (0.2, 0.5):
        found[f"sparsegpt-permuted-corrected-{share}"] = SparseGPT(), {"permute": True, "correction": share}
    for text in ("4:8", "6:8", "50%", "70%"):
        found[f"sparsegpt-{text}"] = SparseGPT(pattern=Pattern.parse(text)), {}
    for bits in (4, 3, 2):
        found[f"gptq-{bits}"] = GPTQ(bits=bits, group_size=64), {}
    return found


def compress(bench: Bench, name: str, out: Path) -> Report:
    method, options = rows()[name]
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


def measure(bench: Bench, name: str) -> Row:
    out, started = bench.work / f"out-{name.replace(':', '-')}", time.perf_counter()
    report = compress(bench, name, out)
    seconds = round(time.perf_counter() - started)
    coded = check(out, bench.work / "packed")
    found = bench.quality(out)
    shutil.rmtree(out)
    known = {"bits": report.bits_per_weight, "sparsity": report.sparsity, "bytes": coded, **found}
    return {**known, "seconds": seconds, "notes": report.fallbacks}


@torch.inference_mode()
def matrices(bench: Bench, layer: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The weight and the mean of x x^T of each of LEAVES in a block."""
    network = Network(Checkpoint.open(bench.original))
    tokens = calibration_tokens(bench.original, bench.calibration, bench.args.samples, 512, 0)
    hiddens, calls = list(network.first_inputs(tokens)), network.calls(tokens)
    for number in range(layer):
        block = network.load(network.blocks[number])
        hiddens = [run_block(block, hidden, calls[number]) for hidden in hiddens]
        network.release(network.blocks[number])
    block, call = network.load(network.blocks[layer]), calls[layer]
    found = {leaf: InputStatistics() for leaf in LEAVES}
    for hidden in hiddens:
        for leaf, x in record(block, [(leaf,) for leaf in LEAVES], lambda: run_block(block, hidden, call)).items():  # noqa: B023
            found[leaf].add(x)
    for statistics in found.values():
        statistics.finish()
    return {leaf: (weight_of(block.get_submodule(leaf)).bfloat16(), s.hessian) for leaf, s in found.items()}


def compare(bench: Bench, layer: int) -> None:
    """The table of --layer."""
    given = matrices(bench, layer)
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


def table(found: dict[str, Row]) -> None:
    """Largest first, so that what is better in fewer bytes stands below what it beats."""
    print("| way | bytes, packed | bits a weight | zeros | perplexity | gap | KL | of SparseGPT's gap |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for row in sorted((found[name] for name in rows() if name in found), key=lambda row: -row["bytes"]):
        share = f"{100 * row['gap'] / found[BASE]['gap']:.0f} %" if BASE in found else ""
        print(f"| {row['name']} | {row['bytes']} | {row['bits']:.3f} | {100 * row['sparsity']:.1f} % ", end="")
        print(f"| {row['perplexity']:.2f} | {row['gap']:.3f} | {column(row['kl'])} | {share} |")


def main() -> None:
    options = parser(__doc__, rows(), 24)
    options.add_argument("--recovery-samples", type=int, default=400)
    options.add_argument("--layer", type=int, metavar="N", help="compare the methods on three matrices of this block")
    args = options.parse_args()
    bench = Bench(args, "prune")
    if args.layer is not None:
        compare(bench, args.layer)
    else:
        table(bench.run(lambda name: measure(bench, name), lambda row: f"{row['bits']:.3f} bits"))


if __name__ == "__main__":
    main()
