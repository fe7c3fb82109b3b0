"""Gates in Triton: a program takes a row. One that is wider than a block is computed twice: to find its largest number,
and to round all by it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from squeeze.lm.fused.arithmetic import EXACT, exp_negative, nearest, product_of, warps
from squeeze.lm.fused.product import Product

__all__ = ["gate"]

_BLOCK = 4096  # numbers at once; a multiple of every block of a rotation


@triton.jit  # type: ignore[untyped-decorator]
def _rotated(x, BLOCK: tl.constexpr, DOUBLINGS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sums and differences of numbers of a distance of 1, 2, 4 .., in this order."""
    for i in tl.static_range(DOUBLINGS):
        pairs = tl.permute(tl.reshape(x, (BLOCK >> (i + 1), 2, 1 << i)), (0, 2, 1))
        a, b = tl.split(pairs)
        x = tl.reshape(tl.permute(tl.join(a + b, a - b), (0, 2, 1)), (BLOCK,))
    return x


@triton.jit  # type: ignore[untyped-decorator]
def _of_block(  # type: ignore[no-untyped-def]
    sums, row_scale, columns, begin, WIDTH: tl.constexpr, BLOCK: tl.constexpr, DOUBLINGS: tl.constexpr
):  # fmt: skip
    column = begin + tl.arange(0, BLOCK)
    present = column < WIDTH
    gate, _ = product_of(sums, row_scale, columns, columns, column, present, False)
    up, _ = product_of(sums + WIDTH, row_scale, columns + WIDTH, columns, column, present, False)
    e = exp_negative(-tl.abs(gate))
    return _rotated(gate * tl.div_rn(tl.where(gate >= 0, 1.0, e), 1.0 + e) * up, BLOCK, DOUBLINGS)


@triton.jit  # type: ignore[untyped-decorator]
def _gate(  # type: ignore[no-untyped-def]
    out, scales, sums, rows, columns, factor, out_stride, sums_stride,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, DOUBLINGS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    sums += row * sums_stride
    row_scale = tl.load(rows + row)
    column = tl.arange(0, BLOCK)
    y = _of_block(sums, row_scale, columns, 0, WIDTH, BLOCK, DOUBLINGS)
    largest = tl.maximum(tl.max(tl.abs(y), 0), 1e-20)
    if WIDTH > BLOCK:
        for begin in range(BLOCK, WIDTH, BLOCK):
            y = _of_block(sums, row_scale, columns, begin, WIDTH, BLOCK, DOUBLINGS)
            largest = tl.maximum(tl.max(tl.abs(y), 0), largest)
    by = tl.div_rn(127.0, largest)
    if WIDTH > BLOCK:
        for begin in range(0, WIDTH, BLOCK):
            y = _of_block(sums, row_scale, columns, begin, WIDTH, BLOCK, DOUBLINGS)
            integers = nearest(y * by).to(out.dtype.element_ty)
            tl.store(out + row * out_stride + begin + column, integers, mask=begin + column < WIDTH)
    else:
        tl.store(out + row * out_stride + column, nearest(y * by).to(out.dtype.element_ty), mask=column < WIDTH)
    tl.store(scales + row, tl.div_rn(largest, 127.0) * factor)


def gate(product: Product, block: int, factor: float, out: Tensor) -> Tensor:
    """As reference.gate."""
    rows, width = product.rows.numel(), product.columns.numel() // 2
    scales = torch.empty(rows, dtype=torch.float32, device=out.device)
    size = max(min(triton.next_power_of_2(width), _BLOCK), block)
    if rows:
        _gate[(rows,)](
            *(out, scales, *product[:3], factor, out.stride(0), product.sums.stride(0)),
            **{"WIDTH": width, "BLOCK": size, "DOUBLINGS": block.bit_length() - 1, "num_warps": warps(size), **EXACT},
        )
    return scales
