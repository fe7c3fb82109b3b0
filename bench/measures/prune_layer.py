"""Methods of pruning on three matrices of one block, whose inputs are the original's.

Bits a weight as stored, and the squared error of the outputs as a share of their square. That takes a minute where
`prune` takes hours.
"""

import argparse
import time
from collections.abc import Iterator
from typing import Any

import torch

from bench.entry import Row
from bench.measures.prune import REFINED, methods
from bench.shared.small_models import Bench
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.pattern import Pattern
from squeeze.engine.calibration import InputStatistics, record
from squeeze.engine.method import layer_error
from squeeze.engine.network import Network, run_block, weight_of
from squeeze.prune.sparse24 import SparseFormat
from squeeze.quant.gptq import GPTQ
from squeeze.recipes.tokens import calibration_tokens

LEAVES = ("self_attn.q_proj", "mlp.up_proj", "mlp.down_proj")
Matrices = dict[str, tuple[torch.Tensor, torch.Tensor]]


def rows(options: argparse.Namespace) -> Iterator[Row]:
    bench, known = Bench(options, "prune-layer"), layerwise()
    wanted = bench.chosen(known)
    given = matrices(bench, options.layer)
    for name in wanted:
        method = known[name]
        yield {"name": name, "layer": options.layer, "samples": options.samples, **compared(method, given)}


def layerwise() -> dict[str, Any]:
    """The methods of `prune` that a matrix alone suffices for, by their rows' names."""
    found = {}
    for name, (method, more) in methods().items():
        if not (isinstance(method, GPTQ) or more.get("permute") or method.pattern != Pattern() or name == REFINED):
            found[name] = method
    return found


def compared(method: Any, given: Matrices) -> Row:
    """Bits a weight, the error of each matrix, and seconds of processor time."""
    started, bits, errors = time.process_time(), 0, {}
    for leaf, (weight, hessian) in given.items():
        sparse = method.apply(weight, hessian)
        assert sparse.pattern.violations(sparse.sparse()) == 0
        bits += 8 * sum(tensor.nbytes for tensor in SparseFormat().tensors("", sparse).values())
        errors[leaf] = round(layer_error(weight.float(), sparse.dequantize(), hessian), 5)
    weights = sum(weight.numel() for weight, _ in given.values())
    return {"bits": round(bits / weights, 4), **errors, "seconds": round(time.process_time() - started, 1)}


@torch.inference_mode()
def matrices(bench: Bench, layer: int) -> Matrices:
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
