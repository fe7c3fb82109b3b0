"""Products of activations with packed integer weights: Triton on a GPU, numba on the CPU. reference.py defines them."""

import torch

from squeeze.kernels import dequant
from squeeze.kernels.dequant import Packed

__all__ = ["matmul"]

_GEMM_ROWS = 64  # more rows than these go to the dense product of the expanded weight


def matmul(x: torch.Tensor, packed: Packed) -> torch.Tensor:
    """x [R, I] @ weight [O, I]^T -> [R, O] in the dtype of x, on a GPU; on the CPU see quant/linear.py."""
    if packed.codebook is not None or packed.global_scale is not None or len(x) > _GEMM_ROWS:
        return torch.nn.functional.linear(x, dequant.dequantize(packed, x.dtype))
    from squeeze.kernels.w4a16 import kernel

    return kernel.matmul(x, packed)
