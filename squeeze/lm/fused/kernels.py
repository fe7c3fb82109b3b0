"""Norms, gates and frequencies in Triton. A program takes a row.

A norm reads its row once. A gate wider than a block is computed twice: to find its largest number, and to round by it.
Frequencies take two passes: for the largest logit, and for the sums.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from squeeze.lm.fused.arithmetic import (
    EXACT,
    exp_negative,
    inverse_of_rms,
    largest_of,
    nearest,
    product_of,
    squares_of,
    warps,
)
from squeeze.lm.fused.reference import Product

__all__ = ["cumulate", "gate", "normalise", "quantise"]


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
    """Compute reference.normalise."""
    total = x if product is None else torch.empty_like(x)
    return total, _launch(x, product, total, epsilon, out, True)


def quantise(x: Tensor, out: Tensor) -> Tensor:
    """Compute reference.quantise."""
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


_GATE_BLOCK = 4096  # numbers at once; a multiple of every block of a rotation


@triton.jit  # type: ignore[untyped-decorator]
def _rotated(x, BLOCK: tl.constexpr, DOUBLINGS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Apply a Hadamard rotation without its scale: sums and differences at distances 1, 2, 4 and on, in this order."""
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
    """Compute reference.gate."""
    rows, width = product.rows.numel(), product.columns.numel() // 2
    scales = torch.empty(rows, dtype=torch.float32, device=out.device)
    size = max(min(triton.next_power_of_2(width), _GATE_BLOCK), block)
    if rows:
        _gate[(rows,)](
            *(out, scales, *product[:3], factor, out.stride(0), product.sums.stride(0)),
            **{"WIDTH": width, "BLOCK": size, "DOUBLINGS": block.bit_length() - 1, "num_warps": warps(size), **EXACT},
        )
    return scales


_LEAF_BLOCK = 4096  # leaves at once


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
    """Compute reference.cumulate."""
    rows, leaves = product.rows.numel(), product.columns.numel()
    out = torch.empty((rows, leaves), dtype=torch.int64, device=product.sums.device)
    size = min(triton.next_power_of_2(leaves), _LEAF_BLOCK)
    bias = product.bias
    if rows:
        _cumulate[(rows,)](
            *(out, *product[:3], product.rows if bias is None else bias, leaves, product.sums.stride(0)),
            **{"BIASED": bias is not None, "BLOCK": size, "num_warps": warps(size), **EXACT},
        )
    return out
