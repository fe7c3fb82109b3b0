"""The division of a product among a GPU's programs: by channels, by rows, and by inputs (split-K), whose sums are
added.
"""

from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["GEMM", "GEMV", "GEMV_ROWS", "Tile", "launch"]

GEMV_ROWS = 4  # rows of activations: more go to the GEMM
_PROGRAMS = 512  # programs that fill a large GPU: inputs are split if there are fewer


@dataclass(frozen=True)
class Tile:
    """The work of one program: `outputs` channels, `inputs` at a step, `rows` of a GEMM; split: parts of the inputs."""

    outputs: int
    inputs: int
    warps: int
    rows: int = 16
    split: int | None = None


GEMV = Tile(outputs=8, inputs=512, warps=4)
GEMM = Tile(outputs=64, inputs=64, warps=4)


def launch(
    kernel: Any,
    x: torch.Tensor,
    shape: tuple[int, int],
    tile: Tile,
    rows: int,
    tensors: tuple[torch.Tensor, ...],
    numbers: tuple[int, ...],
    **constants: int | bool,
) -> torch.Tensor:
    """Multiply x [R, I] by a weight of `shape` [O, I], x @ weight^T, to [R, O] in the dtype of x.

    The kernel is called with (out [splits, R, O], x, *tensors, R, O, I, *numbers, inputs of a split), N and K of the
    tile and the other constants.

    Args:
        kernel: the Triton kernel.
        x: activations.
        shape: outputs and inputs of the weight.
        tile: the work of a program.
        rows: rows of x of a program.
        tensors: the weight's tensors.
        numbers: further arguments.
        constants: further compile-time arguments.
    """
    outputs, inputs = shape
    blocks, steps = (-(-outputs // tile.outputs), -(-len(x) // rows)), -(-inputs // tile.inputs)
    split = tile.split or max(1, min(steps, _PROGRAMS // max(blocks[0] * blocks[1], 1)))
    split_inputs = -(-steps // split) * tile.inputs
    split = -(-inputs // split_inputs)
    out = torch.empty((split, len(x), outputs), dtype=x.dtype if split == 1 else torch.float32, device=x.device)
    if out.numel():
        arguments = (out, x.contiguous(), *tensors, len(x), outputs, inputs, *numbers, split_inputs)
        with torch.cuda.device_of(out):
            kernel[(*blocks, split)](*arguments, N=tile.outputs, K=tile.inputs, num_warps=tile.warps, **constants)
    return out[0] if split == 1 else out.sum(0).to(x.dtype)
