"""The definition: a product with the weight that the codes stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from squeeze.kernels.dequant import reference

if TYPE_CHECKING:
    from squeeze.kernels.dequant import Packed


def matmul(x: torch.Tensor, packed: Packed) -> torch.Tensor:
    """x [R, I] @ weight [O, I]^T -> [R, O], computed in float32 and rounded once to the dtype of x."""
    return (x.to(torch.float32) @ reference.dequantize(packed, torch.float32).T).to(x.dtype)
