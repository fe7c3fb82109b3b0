"""The definition: a product with the 2:4 weight that values and places stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from squeeze.kernels.sparse24 import Packed24


def dense(packed: Packed24) -> torch.Tensor:
    """float32 [O, I]."""
    outputs, groups = packed.outputs, packed.inputs // 4
    values = packed.kept()  # [O, I / 2]
    group = torch.arange(2 * groups, device=values.device) // 2
    shift = group % 8 * 4 + torch.arange(2 * groups, device=values.device) % 2 * 2
    column = packed.places[:, group // 8] >> shift & 3
    out = torch.zeros((outputs, packed.inputs), device=values.device)
    return out.scatter_add_(1, group * 4 + column.long(), values)


def matmul(x: torch.Tensor, packed: Packed24) -> torch.Tensor:
    """x [R, I] @ weight [O, I]^T -> [R, O], computed in float32 and rounded once to the dtype of x."""
    return (x.to(torch.float32) @ dense(packed).T).to(x.dtype)
