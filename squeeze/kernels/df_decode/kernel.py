"""Decoding a plane in Triton: a program a segment, a lane of rANS a lane of the warp.

In a row every lane looks up its slot, steps its state, and takes its next word
if it runs low: whose word is which follows from a mask of the lanes that do. Raw
bits are read and written coalesced, so a plane that is a whole tensor is written
once, in its own type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from squeeze.kernels.df_decode import DevicePlane, Prepared


@triton.jit  # type: ignore[untyped-decorator]
def _count_bits(x):  # type: ignore[no-untyped-def]
    """Ones in each uint32 of a block; compiles to one instruction."""
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return (x * 0x01010101) >> 24


@triton.jit  # type: ignore[untyped-decorator]
def _decode(  # type: ignore[no-untyped-def]
    out, segments, states, starts, ids, table, prefixes, words, raw, count, rows, constant,
    LANES: tl.constexpr, PRECISION: tl.constexpr, WIDTH: tl.constexpr, RAW_BITS: tl.constexpr,
    ROTATED: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0)
    segment = tl.load(segments + number)  # int64
    lane = tl.arange(0, LANES)
    begin = segment * (rows * LANES)
    size = tl.minimum(count - begin, rows * LANES)
    if PACKED:
        target = number.to(tl.int64) * (rows * LANES)
    else:
        target = begin
    raw_begin = segment * (((rows * RAW_BITS + 31) // 32) * LANES)
    if PRECISION > 0:
        state = tl.load(states + segment * LANES + lane).to(tl.uint32)
        position = tl.load(starts + segment)
        offset = tl.load(ids + segment).to(tl.int32) << PRECISION
    for row in range(0, (size + LANES - 1) // LANES):
        index = row * LANES + lane
        present = index < size
        if RAW_BITS == WIDTH:
            value = tl.load(raw + begin + index, mask=present, other=0).to(tl.uint32)
        else:
            if PRECISION > 0:
                slot = (state & ((1 << PRECISION) - 1)).to(tl.int32)
                entry = tl.load(table + offset + slot).to(tl.uint32)
                stepped = ((entry & 0x1FFF) + 1) * (state >> PRECISION) + (entry >> 13)
                small = (stepped < 32768) & present
                low = small.to(tl.int32)
                if LANES <= 32:
                    below = tl.sum(low.to(tl.uint32) << lane.to(tl.uint32), 0) & ((1 << lane) - 1).to(tl.uint32)
                    rank = _count_bits(below).to(tl.int32)
                else:
                    rank = tl.cumsum(low, 0) - low
                word = tl.load(words + position + rank, mask=small, other=0).to(tl.uint32) & 0xFFFF
                stepped = tl.where(small, (stepped << 16) | word, stepped)
                state = tl.where(present, stepped, state)
                position += tl.sum(low, 0)
                prefix = tl.load(prefixes + offset + slot).to(tl.uint32) & 0xFFFF
                value = prefix << RAW_BITS
            else:
                value = tl.zeros((LANES,), tl.uint32) + (constant << RAW_BITS)
            if RAW_BITS > 0:
                bit = row * RAW_BITS
                shift = (bit % 32).to(tl.uint32)
                first = raw + raw_begin + (bit // 32) * LANES + lane
                field = tl.load(first, mask=present, other=0).to(tl.uint32) >> shift
                spills = tl.zeros((LANES,), tl.int32) + (bit % 32 + RAW_BITS).to(tl.int32) > 32
                above = tl.load(first + LANES, mask=present & spills, other=0).to(tl.uint32)
                field |= tl.where(spills, above << ((32 - shift) & 31), 0)
                value |= field & ((1 << RAW_BITS) - 1)
        if ROTATED:
            value = (value >> 1) | (value << (WIDTH - 1))
        tl.store(out + target + index, value.to(out.dtype.element_ty), mask=present)


def decode_plane(
    prepared: Prepared, plane: DevicePlane, segments: torch.Tensor, out: torch.Tensor, rotated: bool, packed: bool
) -> None:
    """As reference.decode_plane."""
    if not len(segments):
        return
    _decode[(len(segments),)](
        *(out, segments, plane.states, plane.starts, plane.ids, plane.table, plane.prefixes, plane.words, plane.raw),
        *(prepared.count, prepared.rows, plane.constant),
        LANES=prepared.lanes,
        PRECISION=plane.precision,
        WIDTH=plane.width,
        RAW_BITS=plane.raw_bits,
        ROTATED=rotated,
        PACKED=packed,
        num_warps=1,
        enable_fp_fusion=False,
    )
