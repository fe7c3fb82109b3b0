"""Frequencies in Triton: a program takes a row, and goes through it twice: for the largest logit, and for the sums."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from squeeze.lm.fused.arithmetic import EXACT, exp_negative, product_of, warps
from squeeze.lm.fused.product import Product

__all__ = ["cumulate"]

_BLOCK = 4096  # leaves at once


@triton.jit  # type: ignore[untyped-decorator]
def _cumulate(  # type: ignore[no-untyped-def]
    out, sums, rows, columns, bias, leaves, sums_stride, BIASED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    sums += row * sums_stride
    row_scale = tl.load(rows + row)
    place = tl.arange(0, BLOCK)
    most = tl.full((BLOCK,), float("-inf"), tl.float32)
    for begin in range(0, leaves, BLOCK):
        present = begin + place < leaves
        logit, added = product_of(sums, row_scale, columns, bias, begin + place, present, BIASED)
        most = tl.maximum(most, tl.where(present, logit + added if BIASED else logit, float("-inf")))
    top = tl.max(most, 0)
    before = tl.zeros((1,), tl.int64)
    for begin in range(0, leaves, BLOCK):
        present = begin + place < leaves
        logit, added = product_of(sums, row_scale, columns, bias, begin + place, present, BIASED)
        share = exp_negative((logit + added if BIASED else logit) - top) * 1099511627776.0
        counts = tl.where(present, share.to(tl.int64) + 1, 0)
        tl.store(out + row * leaves + begin + place, before + tl.cumsum(counts, 0), mask=present)
        before += tl.sum(counts, 0)


def cumulate(product: Product) -> Tensor:
    """As reference.cumulate."""
    rows, leaves = product.rows.numel(), product.columns.numel()
    out = torch.empty((rows, leaves), dtype=torch.int64, device=product.sums.device)
    size = min(triton.next_power_of_2(leaves), _BLOCK)
    bias = product.bias
    if rows:
        _cumulate[(rows,)](
            *(out, *product[:3], product.rows if bias is None else bias, leaves, product.sums.stride(0)),
            **{"BIASED": bias is not None, "BLOCK": size, "num_warps": warps(size), **EXACT},
        )
    return out
