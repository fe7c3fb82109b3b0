"""Products with TT-matrices: Triton for two cores on a GPU, torch for all else. reference.py defines them."""

from collections.abc import Sequence

import torch

from squeeze.kernels.tt import reference
from squeeze.kernels.tt.reference import rows_to_expand

__all__ = ["multiply", "rows_to_expand"]


def multiply(x: torch.Tensor, cores: Sequence[torch.Tensor]) -> torch.Tensor:
    """x [T, i1 i2 ..] by cores [R_k, o_k, i_k, R_k+1] -> [T, o1 o2 ..]; the dense matrix is never formed."""
    if x.device.type == "cpu" or len(cores) not in (2, 3) or cores[0].shape[0] != 1 or torch.is_grad_enabled():
        return reference.multiply(x, cores)
    from squeeze.kernels.tt import kernel

    product: torch.Tensor = kernel.multiply(x, cores)
    return product
