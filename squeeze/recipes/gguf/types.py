"""Types of a GGUF file's matrices: those with which the least is lost in a file of a given size."""

from collections.abc import Mapping

import torch

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.network import Network, weight_of
from squeeze.engine.pipeline import plan
from squeeze.errors import SqueezeError
from squeeze.integrations.gguf.export import Export, padded
from squeeze.quant.allocation import allocate
from squeeze.quant.blocks import GRIDS, BlockTensor, type_for
from squeeze.quant.method import GridMethod
from squeeze.recipes.quantizing.bits import FISHER_TOKENS
from squeeze.recipes.run import Run

__all__ = ["BOUNDS", "MIDDLE", "by_size"]

MIDDLE = "q4_k"  # what decides on the types of embedding and head
BOUNDS = {"q3_k": 4.0}  # of a token's weight where none is asked for: `bench gguf` has what it gains
_TYPES = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "q8_0")  # to choose from, or what fits in their places


def by_size(
    run: Run, checkpoint: Checkpoint, method: GridMethod, size: int, tokens: torch.Tensor
) -> dict[str, GridMethod]:
    """A method for each matrix, by the checkpoint's names, such that the file has at most `size` bytes. All experts of
    a layer get one type, since a file has them in one tensor. Raises SqueezeError where even the smallest types are too
    large."""
    export, network = Export.of(checkpoint), Network(checkpoint, run.device)
    tensor_of = {source: name for name, sources in export.named.items() for source in sources}
    shapes = {
        name: weight_of(network.module(name)).shape
        for block in network.blocks
        for name in (f"{block}.{leaf}" for leaf in plan(network, block, run.common.left_alone)[0])
    }
    kinds = {name: found for name, shape in shapes.items() if (found := _types(shape[1]))}
    units = {name: tensor_of[f"{network.stored_name(name)}.weight"] for name in kinds}
    left = size - _others(export, units)
    least = sum(
        shapes[name].numel() // GRIDS[found[0]].width * GRIDS[found[0]].block_bytes for name, found in kinds.items()
    )
    if least > left:
        raise SqueezeError(f"a file of {size} bytes is too small: the least that it takes is {size - left + least}")

    def rounded(weight: torch.Tensor, number: int) -> tuple[torch.Tensor, int]:
        found = _types(weight.shape[1])
        if number >= len(found):
            raise SqueezeError("there are fewer")
        tensor = method.replaced(grid=found[number]).fallback().compress(weight.bfloat16()).tensor
        assert isinstance(tensor, BlockTensor)
        return tensor.dequantize(), tensor.stored_bits // 8

    sample = tokens[: max(FISHER_TOKENS // tokens.shape[1], 1)]
    chosen, _ = allocate(network, sample, units, rounded, lambda _: left, range(len(_TYPES)))
    return {network.stored_name(name): method.replaced(grid=kinds[name][chosen[unit]]) for name, unit in units.items()}


def _types(inputs: int) -> list[str]:
    """Those that fit so many inputs, smallest first."""
    return list(dict.fromkeys(found for name in _TYPES if (found := type_for(name, inputs))))


def _others(export: Export, units: Mapping[str, str]) -> int:
    """Bytes of a file but for the matrices, with the most that fills those up."""
    head, sizes = export.size(MIDDLE)
    matrices = set(units.values())
    return head + sum(size for name, size in sizes.items() if name not in matrices) + len(matrices) * (padded(1) - 1)
