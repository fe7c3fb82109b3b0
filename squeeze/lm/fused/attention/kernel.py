"""Turns, heads and attention in Triton: what launches them. turning.py and meeting.py have the kernels."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from squeeze.lm.fused.arithmetic import EXACT
from squeeze.lm.fused.attention import Kept, Norms, Queries, Shape, Turns, meeting, turning
from squeeze.lm.fused.attention.reference import root_of
from squeeze.lm.fused.product import Product

__all__ = ["attend", "heads", "turns"]

_ANGLES = 64  # at once
_KEYS, _ROWS = 4096, (8, 16)  # numbers of a tile of keys, and queries: few where there are no more


def turns(table: Tensor, factor: float, positions: Tensor, shape: Shape, most: int) -> Turns:
    """As reference.turns, whatever the largest position is."""
    rows, half = positions.numel(), shape.size // 2
    found = torch.empty((2, 2, rows, half), dtype=torch.float32, device=positions.device)
    if rows:
        turning.turns[(2 * rows, triton.cdiv(half, _ANGLES))](
            *(found, table, positions, rows, shape.far),
            **{
                "FACTOR": float(factor),
                "HALF": half,
                "BITS": table.shape[1],
                "BLOCK": _ANGLES,
                "num_warps": 2,
                **EXACT,
            },
        )
    return Turns(*found)


def heads(product: Product, shape: Shape, norms: Norms, turned: Turns, positions: Tensor, kept: Kept) -> Queries:
    """As reference.heads."""
    rows, n, half = positions.numel(), positions.shape[1], shape.size // 2
    integers = torch.empty((rows, 2, shape.heads, shape.size), dtype=torch.int16, device=positions.device)
    scales = torch.empty((rows, 2, shape.heads), dtype=torch.float32, device=positions.device)
    weights = (turned.sine if weight is None else weight for weight in (norms.query, norms.key))
    if rows:
        turning.heads[(rows, shape.heads + 2 * shape.groups)](
            *(integers, scales, *kept, *product[:3], turned.sine if product.bias is None else product.bias),
            *(*turned, *weights, positions, norms.epsilon, n, rows, product.sums.stride(0), *_strides(kept)),
            **{"HEADS": shape.heads, "GROUPS": shape.groups, "HALF": half, "BLOCK": triton.next_power_of_2(half)},
            **{"BIASED": product.bias is not None, "NORMED_QUERY": norms.query is not None},
            **{"NORMED_KEY": norms.key is not None, "num_warps": 1, **EXACT},
        )
    return Queries(integers, scales)


def attend(queries: Queries, shape: Shape, positions: Tensor, kept: Kept) -> Tensor:
    """As reference.attend."""
    lanes, n = positions.shape
    out = torch.empty((lanes * n, shape.heads * shape.size), dtype=torch.float32, device=positions.device)
    each = n * (shape.heads // shape.groups)  # queries that share keys
    rows, block = _ROWS[each > _ROWS[0]], max(32, triton.next_power_of_2(shape.size))
    if out.numel():
        meeting.attend[(triton.cdiv(each, rows), lanes * shape.groups)](
            *(out, *queries, *kept, positions, root_of(shape.size), n, shape.window, *_strides(kept)),
            **{"HEADS": shape.heads, "GROUPS": shape.groups, "SIZE": shape.size},
            **{"BLOCK": block, "ROWS": rows, "SLOTS": max(32, min(64, _KEYS // block))},
            **{"num_warps": 2, **EXACT},  # of 4, Triton would use instructions that want larger tiles
        )
    return out


def _strides(kept: Kept) -> tuple[Any, ...]:
    """Slots; and from keys to values and from lane to lane, of integers and of scales."""
    return kept.scales.shape[-1], *kept.integers.stride()[:2], *kept.scales.stride()[:2]
