"""Attention in Triton in three passes over keys and values.

A program takes some queries that share them. The passes find the largest score, the sum of exponentials with the
largest weight, and the weighted values. Scores are computed in each pass again, since 8-bit keys are no more to read
than stored scores. Products are of int8 on tensor cores: a 16-bit number is 256 h + l, both signed bytes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from squeeze.lm.fused.arithmetic import exp_negative, nearest

__all__ = ["attend"]


@triton.jit  # type: ignore[untyped-decorator]
def _parts(x):  # type: ignore[no-untyped-def]
    """Split integers into h and l, int8."""
    high = (x + 128) >> 8
    return high.to(tl.int8), (x - high * 256).to(tl.int8)


@triton.jit  # type: ignore[untyped-decorator]
def _queries(integers, scales, at, column, root, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load h and l of queries [size, rows], and their scales times 1 / sqrt(size)."""
    inside = column[:, None] < SIZE
    x = tl.load(integers + at[None, :] * SIZE + column[:, None], mask=inside, other=0).to(tl.int32)
    high, low = _parts(x)
    return high, low, tl.load(scales + at) * root


@triton.jit  # type: ignore[untyped-decorator]
def _block(integers, slot, held, column, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load int8 [slots, size] of keys or values, for slots that exist."""
    inside = held[:, None] & (column[None, :] < SIZE)
    return tl.load(integers + slot.to(tl.int64)[:, None] * SIZE + column[None, :], mask=inside, other=0)


@triton.jit  # type: ignore[untyped-decorator]
def _scores(high, low, factor, keys, key_scales, slot, held, column, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return scores, float32 [slots, rows]."""
    key = _block(keys, slot, held, column, SIZE)
    products = tl.dot(key, high, out_dtype=tl.int32) * 256 + tl.dot(key, low, out_dtype=tl.int32)
    return products.to(tl.float32) * (factor[None, :] * tl.load(key_scales + slot, mask=held, other=0)[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def _of_ring(  # type: ignore[no-untyped-def]
    high, low, factor, keys, key_scales, newest, reach, begin, ring, column, SIZE: tl.constexpr, SLOTS: tl.constexpr
):  # fmt: skip
    """Return scores [slots, rows] of slots from `begin` of the ring on, a mask of those seen, the slots, and a mask of
    existing slots.

    `newest` is the place in the ring of each row's own position, and `reach` is how far back it sees.
    """
    place = begin + tl.arange(0, SLOTS)
    held = place < ring
    z = _scores(high, low, factor, keys, key_scales, 16 + place, held, column, SIZE)
    back = newest[None, :] - place[:, None]
    back = tl.where(back < 0, back + ring, back)
    return z, held[:, None] & (back <= reach[None, :]), 16 + place, held


@triton.jit  # type: ignore[untyped-decorator]
def _shares(z, seen, top, value_scales, slot, held):  # type: ignore[no-untyped-def]
    """Return the sums of exponentials of a tile as integers with 20 fractional bits, and exponentials times value
    scales."""
    shares = tl.where(seen, exp_negative(z - top[None, :]), 0.0)
    total = tl.sum(nearest(shares * 1048576.0).to(tl.int32), 0)
    return total, shares * tl.load(value_scales + slot, mask=held, other=0)[:, None]


@triton.jit  # type: ignore[untyped-decorator]
def _valued(weights, by, values, slot, held, column, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return products int32 [size, rows] of values with h and with l of a tile's weights, integers within 32639."""
    high, low = _parts(nearest(weights * by[None, :]).to(tl.int32))
    value = tl.trans(_block(values, slot, held, column, SIZE))
    return tl.dot(value, high, out_dtype=tl.int32), tl.dot(value, low, out_dtype=tl.int32)


@triton.jit  # type: ignore[untyped-decorator]
def attend(  # type: ignore[no-untyped-def]
    out, queries, query_scales, kv, kv_scales, positions, root, n, window, slots, stride, lane_stride, scale_stride,
    lane_scale_stride, HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    PER_GROUP: tl.constexpr = HEADS // GROUPS
    lane, group = tl.program_id(1).to(tl.int64) // GROUPS, tl.program_id(1) % GROUPS
    query = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_query = query < n * PER_GROUP
    query = tl.minimum(query, n * PER_GROUP - 1)
    row, head = lane * n + query // PER_GROUP, group * PER_GROUP + query % PER_GROUP
    position = tl.load(positions + row).to(tl.int32)
    column = tl.arange(0, BLOCK)
    keys = kv + lane * lane_stride + group.to(tl.int64) * slots * SIZE
    key_scales = kv_scales + lane * lane_scale_stride + group * slots
    values, value_scales = keys + stride, key_scales + scale_stride
    ring = slots - 16
    newest = (position - 16 + ring) % ring
    reach = position - 16 * tl.maximum(position // 16 - window + 1, 1)
    last = tl.minimum(ring, tl.max(position, 0) - 15)

    sink = tl.arange(0, 32)
    in_sink = sink < 16
    at = row * 2 * HEADS + head
    far_high, far_low, far_factor = _queries(queries, query_scales, at, column, root, SIZE)
    seen_sink = in_sink[:, None] & (sink[:, None] <= position[None, :])
    z_sink = _scores(far_high, far_low, far_factor, keys, key_scales, sink, in_sink, column, SIZE)
    high, low, factor = _queries(queries, query_scales, at + HEADS, column, root, SIZE)

    top = tl.max(tl.where(seen_sink, z_sink, -1e30), 0)
    for begin in range(0, last, SLOTS):
        z, seen, slot, held = _of_ring(
            high, low, factor, keys, key_scales, newest, reach, begin, ring, column, SIZE, SLOTS
        )
        top = tl.maximum(top, tl.max(tl.where(seen, z, -1e30), 0))

    added, weights_sink = _shares(z_sink, seen_sink, top, value_scales, sink, in_sink)
    total, largest = added.to(tl.int64), tl.maximum(tl.max(weights_sink, 0), 1e-20)
    for begin in range(0, last, SLOTS):
        z, seen, slot, held = _of_ring(
            high, low, factor, keys, key_scales, newest, reach, begin, ring, column, SIZE, SLOTS
        )
        added, weights = _shares(z, seen, top, value_scales, slot, held)
        total += added
        largest = tl.maximum(largest, tl.max(weights, 0))

    by = tl.div_rn(32639.0, largest)
    found_high, found_low = _valued(weights_sink, by, values, sink, in_sink, column, SIZE)
    for begin in range(0, last, SLOTS):
        z, seen, slot, held = _of_ring(
            high, low, factor, keys, key_scales, newest, reach, begin, ring, column, SIZE, SLOTS
        )
        _, weights = _shares(z, seen, top, value_scales, slot, held)
        more_high, more_low = _valued(weights, by, values, slot, held, column, SIZE)
        found_high += more_high
        found_low += more_low

    scale = tl.div_rn(tl.div_rn(largest, 32639.0) * 1048576.0, total.to(tl.float64).to(tl.float32))
    found = (found_high.to(tl.float64) * 256.0 + found_low.to(tl.float64)).to(tl.float32) * scale[None, :]
    target = out + (row * HEADS + head)[None, :] * SIZE + column[:, None]
    tl.store(target, found, mask=is_query[None, :] & (column[:, None] < SIZE))
