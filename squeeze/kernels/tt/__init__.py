"""Products with TT-matrices: Triton for two cores on a GPU where it is faster, torch for all else.

reference.py defines them.
"""

from collections.abc import Sequence
from functools import partial

import torch

from squeeze.kernels import choices
from squeeze.kernels.tt import reference
from squeeze.kernels.tt.reference import rows_to_expand

__all__ = ["multiply", "rows_to_expand"]


def multiply(x: torch.Tensor, cores: Sequence[torch.Tensor]) -> torch.Tensor:
    """x [T, i1 i2 ..] by cores [R_k, o_k, i_k, R_k+1] -> [T, o1 o2 ..]; the dense matrix is never formed."""
    if x.device.type == "cpu" or len(cores) not in (2, 3) or cores[0].shape[0] != 1 or torch.is_grad_enabled():
        return reference.multiply(x, cores)
    from squeeze.kernels.tt import kernel

    if not kernel.fits(len(x), cores):
        return reference.multiply(x, cores)
    ways = {"torch": partial(reference.multiply, x, cores), "kernel": partial(kernel.multiply, x, cores)}
    what = f"tensor train {' by '.join('x'.join(map(str, core.shape)) for core in cores)}"
    return ways[choices.fastest(x, what, ways, "kernel", "torch")]()
