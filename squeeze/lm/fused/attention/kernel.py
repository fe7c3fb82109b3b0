"""Rotary angles and heads in Triton, and the launches of all attention kernels; three_passes.py has that of
attention."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from squeeze.lm.fused.arithmetic import EXACT, inverse_of_rms, largest_of, nearest, product_of, squares_of
from squeeze.lm.fused.attention import LayerCache, Norms, Queries, Rotary, Shape, three_passes
from squeeze.lm.fused.attention.reference import root_of
from squeeze.lm.fused.reference import Product

__all__ = ["attend", "heads", "rotary"]


@triton.jit  # type: ignore[untyped-decorator]
def _rotary(  # type: ignore[no-untyped-def]
    out, table, positions, rows, far,
    FACTOR: tl.constexpr, HALF: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the angles of a row per program, for the window (the first `rows` programs) or the first block.

    FACTOR is a constant, since Triton passes floats as float32.
    """
    place = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    present = column < HALF
    position = tl.load(positions + place % rows)
    if place >= rows:
        position = tl.minimum(position, far)
    cosine = tl.full((BLOCK,), FACTOR, tl.float64)
    sine = tl.zeros((BLOCK,), tl.float64)
    for bit in range(0, BITS):
        if ((position >> bit) & 1) != 0:
            c = tl.load(table + bit * HALF + column, mask=present, other=0)
            s = tl.load(table + (BITS + bit) * HALF + column, mask=present, other=0)
            next_cosine = cosine * c - sine * s
            sine = cosine * s + sine * c
            cosine = next_cosine
    tl.store(out + place * HALF + column, cosine.to(tl.float32), mask=present)
    tl.store(out + (2 * rows + place) * HALF + column, sine.to(tl.float32), mask=present)


@triton.jit  # type: ignore[untyped-decorator]
def _normed(a, b, weight, column, present, epsilon, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the normed halves of a head."""
    largest = tl.maximum(largest_of(a), largest_of(b))
    squares = tl.sum(squares_of(a, largest), 0) + tl.sum(squares_of(b, largest), 0)
    inverse = inverse_of_rms(squares, largest, epsilon, 2 * HALF)
    return (
        a * inverse * tl.load(weight + column, mask=present, other=0),
        b * inverse * tl.load(weight + HALF + column, mask=present, other=0),
    )


@triton.jit  # type: ignore[untyped-decorator]
def _rotated(a, b, cosine, sine, at, present):  # type: ignore[no-untyped-def]
    c, s = tl.load(cosine + at, mask=present, other=0), tl.load(sine + at, mask=present, other=0)
    return a * c - b * s, a * s + b * c


@triton.jit  # type: ignore[untyped-decorator]
def _put(out, scale_out, a, b, top, column, present, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """Store the halves of a head as integers within `top`, and their scale."""
    largest = tl.maximum(largest_of(a), largest_of(b))
    by = tl.div_rn(top, largest)
    tl.store(out + column, nearest(a * by).to(out.dtype.element_ty), mask=present)
    tl.store(out + HALF + column, nearest(b * by).to(out.dtype.element_ty), mask=present)
    tl.store(scale_out, tl.div_rn(largest, top))


@triton.jit  # type: ignore[untyped-decorator]
def _heads(  # type: ignore[no-untyped-def]
    queries, query_scales, kv, kv_scales, sums, rows, columns, bias, cosine, sine, query_norm, key_norm, positions,
    epsilon, n, count, sums_stride, slots, stride, lane_stride, scale_stride, lane_scale_stride,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, BIASED: tl.constexpr,
    NORMED_QUERY: tl.constexpr, NORMED_KEY: tl.constexpr,
):  # fmt: skip
    """Process one head of a row per program: a query, a key or a value. A lane has n rows, all lanes have `count`."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, BLOCK)
    present = column < HALF
    sums += row * sums_stride
    row_scale = tl.load(rows + row)
    first = head * (2 * HALF) + column
    a, added = product_of(sums, row_scale, columns, bias, first, present, BIASED)
    b, added_b = product_of(sums, row_scale, columns, bias, first + HALF, present, BIASED)
    if BIASED:
        a, b = a + added, b + added_b
    at, at_far = row * HALF + column, (count + row) * HALF + column
    if head < HEADS:
        if NORMED_QUERY:
            a, b = _normed(a, b, query_norm, column, present, epsilon, HALF)
        queries += (row * 2 * HEADS + head) * (2 * HALF)
        query_scales += row * 2 * HEADS + head
        far_a, far_b = _rotated(a, b, cosine, sine, at_far, present)
        _put(queries, query_scales, far_a, far_b, 32639.0, column, present, HALF)
        near_a, near_b = _rotated(a, b, cosine, sine, at, present)
        _put(queries + HEADS * (2 * HALF), query_scales + HEADS, near_a, near_b, 32639.0, column, present, HALF)
    else:
        position = tl.load(positions + row)
        slot = tl.where(position < 16, position, 16 + (position - 16) % (slots - 16))
        group, lane = (head - HEADS) % GROUPS, row // n
        kv += lane * lane_stride + (group * slots + slot) * (2 * HALF)
        kv_scales += lane * lane_scale_stride + group * slots + slot
        if head >= HEADS + GROUPS:
            _put(kv + stride, kv_scales + scale_stride, a, b, 127.0, column, present, HALF)
        else:
            if NORMED_KEY:
                a, b = _normed(a, b, key_norm, column, present, epsilon, HALF)
            key_a, key_b = _rotated(a, b, cosine, sine, at, present)
            _put(kv, kv_scales, key_a, key_b, 127.0, column, present, HALF)


_ANGLES = 64  # angles of a program
_KEYS, _ROWS = 4096, (8, 16)  # numbers of a tile of keys, and queries of a program


def rotary(table: Tensor, factor: float, positions: Tensor, shape: Shape, most: int) -> Rotary:
    """Compute reference.rotary; the largest position does not matter."""
    rows, half = positions.numel(), shape.size // 2
    found = torch.empty((2, 2, rows, half), dtype=torch.float32, device=positions.device)
    if rows:
        _rotary[(2 * rows, triton.cdiv(half, _ANGLES))](
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
    return Rotary(*found)


def heads(product: Product, shape: Shape, norms: Norms, rotary: Rotary, positions: Tensor, kv: LayerCache) -> Queries:
    """Compute reference.heads."""
    rows, n, half = positions.numel(), positions.shape[1], shape.size // 2
    integers = torch.empty((rows, 2, shape.heads, shape.size), dtype=torch.int16, device=positions.device)
    scales = torch.empty((rows, 2, shape.heads), dtype=torch.float32, device=positions.device)
    weights = (rotary.sine if weight is None else weight for weight in (norms.query, norms.key))
    if rows:
        _heads[(rows, shape.heads + 2 * shape.groups)](
            *(integers, scales, *kv, *product[:3], rotary.sine if product.bias is None else product.bias),
            *(*rotary, *weights, positions, norms.epsilon, n, rows, product.sums.stride(0), *_strides(kv)),
            **{"HEADS": shape.heads, "GROUPS": shape.groups, "HALF": half, "BLOCK": triton.next_power_of_2(half)},
            **{"BIASED": product.bias is not None, "NORMED_QUERY": norms.query is not None},
            **{"NORMED_KEY": norms.key is not None, "num_warps": 1, **EXACT},
        )
    return Queries(integers, scales)


def attend(queries: Queries, shape: Shape, positions: Tensor, kv: LayerCache) -> Tensor:
    """Compute reference.attend."""
    lanes, n = positions.shape
    out = torch.empty((lanes * n, shape.heads * shape.size), dtype=torch.float32, device=positions.device)
    each = n * (shape.heads // shape.groups)  # queries that share keys
    rows, block = _ROWS[each > _ROWS[0]], max(32, triton.next_power_of_2(shape.size))
    if out.numel():
        three_passes.attend[(triton.cdiv(each, rows), lanes * shape.groups)](
            *(out, *queries, *kv, positions, root_of(shape.size), n, shape.window, *_strides(kv)),
            **{"HEADS": shape.heads, "GROUPS": shape.groups, "SIZE": shape.size},
            **{"BLOCK": block, "ROWS": rows, "SLOTS": max(32, min(64, _KEYS // block))},
            **{"num_warps": 2, **EXACT},  # with 4, Triton uses instructions that need larger tiles
        )
    return out


def _strides(kv: LayerCache) -> tuple[Any, ...]:
    """Return the slots, and strides from keys to values and from lane to lane, of integers and of scales."""
    return kv.scales.shape[-1], *kv.integers.stride()[:2], *kv.scales.stride()[:2]
