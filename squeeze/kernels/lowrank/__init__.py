"""Products with a pair of factors: Triton for few rows on a GPU where it is faster, torch for all else.

reference.py defines them; cpu.py multiplies one row by a pivoted matrix.
"""

from functools import partial

import torch

from squeeze.kernels import choices
from squeeze.kernels.lowrank import reference

__all__ = ["multiply"]

_FEW_ROWS = 16  # for more, two products of the library are as fast


def multiply(x: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """x [T, I], left [O, R], right [R, I] -> [T, O]."""
    if x.device.type == "cpu" or len(x) > _FEW_ROWS or torch.is_grad_enabled():
        return reference.multiply(x, left, right)
    from squeeze.kernels.lowrank import kernel

    ways = {"torch": partial(reference.multiply, x, left, right), "kernel": partial(kernel.multiply, x, left, right)}
    what = f"pair {len(left)}x{x.shape[1]} of rank {len(right)}"
    return ways[choices.fastest(x, what, ways, "kernel", "torch")]()
