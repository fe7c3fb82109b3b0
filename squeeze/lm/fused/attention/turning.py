"""How far rows are turned, and their heads turned, rounded, and put where they belong, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from squeeze.lm.fused.arithmetic import inverse_of_rms, largest_of, nearest, product_of, squares_of

__all__ = ["heads", "turns"]


@triton.jit  # type: ignore[untyped-decorator]
def turns(  # type: ignore[no-untyped-def]
    out, table, positions, rows, far,
    FACTOR: tl.constexpr, HALF: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program takes a row, as it meets the window (the first `rows` programs) or the first block. FACTOR is a
    float64: of a number that is no constant, Triton would pass the nearest float32."""
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
            turned = cosine * c - sine * s
            sine = cosine * s + sine * c
            cosine = turned
    tl.store(out + place * HALF + column, cosine.to(tl.float32), mask=present)
    tl.store(out + (2 * rows + place) * HALF + column, sine.to(tl.float32), mask=present)


@triton.jit  # type: ignore[untyped-decorator]
def _normed(a, b, weight, column, present, epsilon, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """The halves of a head."""
    largest = tl.maximum(largest_of(a), largest_of(b))
    squares = tl.sum(squares_of(a, largest), 0) + tl.sum(squares_of(b, largest), 0)
    inverse = inverse_of_rms(squares, largest, epsilon, 2 * HALF)
    return (
        a * inverse * tl.load(weight + column, mask=present, other=0),
        b * inverse * tl.load(weight + HALF + column, mask=present, other=0),
    )


@triton.jit  # type: ignore[untyped-decorator]
def _turned(a, b, cosine, sine, at, present):  # type: ignore[no-untyped-def]
    c, s = tl.load(cosine + at, mask=present, other=0), tl.load(sine + at, mask=present, other=0)
    return a * c - b * s, a * s + b * c


@triton.jit  # type: ignore[untyped-decorator]
def _put(out, scale_out, a, b, top, column, present, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """The halves of a head as integers within `top`, and their scale."""
    largest = tl.maximum(largest_of(a), largest_of(b))
    by = tl.div_rn(top, largest)
    tl.store(out + column, nearest(a * by).to(out.dtype.element_ty), mask=present)
    tl.store(out + HALF + column, nearest(b * by).to(out.dtype.element_ty), mask=present)
    tl.store(scale_out, tl.div_rn(largest, top))


@triton.jit  # type: ignore[untyped-decorator]
def heads(  # type: ignore[no-untyped-def]
    queries, query_scales, kept, kept_scales, sums, rows, columns, bias, cosine, sine, query_norm, key_norm, positions,
    epsilon, n, count, sums_stride, slots, stride, lane_stride, scale_stride, lane_scale_stride,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, BIASED: tl.constexpr,
    NORMED_QUERY: tl.constexpr, NORMED_KEY: tl.constexpr,
):  # fmt: skip
    """A program takes a head of a row: a query, a key, or a value. n: rows of a lane, of `count` in all."""
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
        far_a, far_b = _turned(a, b, cosine, sine, at_far, present)
        _put(queries, query_scales, far_a, far_b, 32639.0, column, present, HALF)
        near_a, near_b = _turned(a, b, cosine, sine, at, present)
        _put(queries + HEADS * (2 * HALF), query_scales + HEADS, near_a, near_b, 32639.0, column, present, HALF)
    else:
        position = tl.load(positions + row)
        slot = tl.where(position < 16, position, 16 + (position - 16) % (slots - 16))
        group, lane = (head - HEADS) % GROUPS, row // n
        kept += lane * lane_stride + (group * slots + slot) * (2 * HALF)
        kept_scales += lane * lane_scale_stride + group * slots + slot
        if head >= HEADS + GROUPS:
            _put(kept + stride, kept_scales + scale_stride, a, b, 127.0, column, present, HALF)
        else:
            if NORMED_KEY:
                a, b = _normed(a, b, key_norm, column, present, epsilon, HALF)
            key_a, key_b = _turned(a, b, cosine, sine, at, present)
            _put(kept, kept_scales, key_a, key_b, 127.0, column, present, HALF)
