"""Norms in Triton: a program takes a row, and reads it once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from squeeze.lm.fused.arithmetic import EXACT, inverse_of_rms, largest_of, nearest, product_of, squares_of, warps
from squeeze.lm.fused.product import Product

__all__ = ["normalise", "quantise"]


@triton.jit  # type: ignore[untyped-decorator]
def _norm(  # type: ignore[no-untyped-def]
    out, scales, total, x, sums, rows, columns, bias, epsilon, out_stride, sums_stride,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ADDED: tl.constexpr, BIASED: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    present = column < WIDTH
    value = tl.load(x + row * WIDTH + column, mask=present, other=0)
    if ADDED:
        product, added = product_of(
            sums + row * sums_stride, tl.load(rows + row), columns, bias, column, present, BIASED
        )
        value = value + product
        if BIASED:
            value = value + added
        tl.store(total + row * WIDTH + column, value, mask=present)
    largest = largest_of(value)
    scale = tl.div_rn(largest, 127.0)
    if NORMED:
        squares = tl.sum(squares_of(value, largest), 0)
        scale = scale * inverse_of_rms(squares, largest, epsilon, WIDTH)
    integers = nearest(value * tl.div_rn(127.0, largest))
    tl.store(out + row * out_stride + column, integers.to(out.dtype.element_ty), mask=present)
    tl.store(scales + row, scale)


def normalise(x: Tensor, product: Product | None, epsilon: float, out: Tensor) -> tuple[Tensor, Tensor]:
    """As reference.normalise."""
    total = x if product is None else torch.empty_like(x)
    return total, _launch(x, product, total, epsilon, out, True)


def quantise(x: Tensor, out: Tensor) -> Tensor:
    """As reference.quantise."""
    return _launch(x, None, x, 0.0, out, False)


def _launch(x: Tensor, product: Product | None, total: Tensor, epsilon: float, out: Tensor, normed: bool) -> Tensor:
    rows, width = x.shape
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(width)
    sums, of_rows, of_columns, bias = product or (x, x, x, None)
    if rows:
        _norm[(rows,)](
            *(out, scales, total, x, sums, of_rows, of_columns, x if bias is None else bias, epsilon),
            *(out.stride(0), sums.stride(0)),
            **{"WIDTH": width, "BLOCK": block, "ADDED": product is not None, "BIASED": bias is not None},
            **{"NORMED": normed, "num_warps": warps(block), **EXACT},
        )
    return scales
