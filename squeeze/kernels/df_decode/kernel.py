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
def _decode_segment(  # type: ignore[no-untyped-def]
    out, segment, size, states, starts, ids, table, prefixes, words, limit, raw, rows, constant,
    LANES: tl.constexpr, PRECISION: tl.constexpr, WIDTH: tl.constexpr, RAW_BITS: tl.constexpr, ROTATED: tl.constexpr,
):  # fmt: skip
    """`size` values into `out`, where the first of them goes. No word is read from `limit` on: a damaged segment would
    take one for each of its values."""
    lane = tl.arange(0, LANES)
    begin = segment * (rows * LANES)
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
                there = small & (position + rank < limit)
                word = tl.load(words + position + rank, mask=there, other=0).to(tl.uint32) & 0xFFFF
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
        tl.store(out + index, value.to(out.dtype.element_ty), mask=present)


@triton.jit(do_not_specialize=("limit",))  # type: ignore[untyped-decorator]
def _decode(  # type: ignore[no-untyped-def]
    out, segments, states, starts, ids, table, prefixes, words, limit, raw, count, rows, constant,
    LANES: tl.constexpr, PRECISION: tl.constexpr, WIDTH: tl.constexpr, RAW_BITS: tl.constexpr,
    ROTATED: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0)
    segment = tl.load(segments + number)  # int64
    begin = segment * (rows * LANES)
    if PACKED:
        out += number.to(tl.int64) * (rows * LANES)
    else:
        out += begin
    _decode_segment(
        out, segment, tl.minimum(count - begin, rows * LANES), states, starts, ids, table, prefixes, words, limit, raw,
        rows, constant, LANES, PRECISION, WIDTH, RAW_BITS, ROTATED,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _place(places, column: tl.constexpr, kind: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.load(places + column).to(tl.pointer_type(kind))


@triton.jit  # type: ignore[untyped-decorator]
def _decode_several(  # type: ignore[no-untyped-def]
    owners, places, rows,
    COLUMNS: tl.constexpr, LANES: tl.constexpr, PRECISION: tl.constexpr, WIDTH: tl.constexpr, RAW_BITS: tl.constexpr,
    ROTATED: tl.constexpr,
):  # fmt: skip
    """As `_decode`, of the planes that `places` [planes, COLUMNS] says: addresses, then numbers, as `row_of` writes."""
    number = tl.program_id(0).to(tl.int64)
    places += tl.load(owners + number).to(tl.int64) * COLUMNS
    kind: tl.constexpr = tl.uint8 if WIDTH == 8 else (tl.int16 if WIDTH == 16 else tl.int32)
    of_raw: tl.constexpr = kind if RAW_BITS == WIDTH else tl.int32
    segment = number - tl.load(places + 8)
    begin = segment * (rows * LANES)
    _decode_segment(
        _place(places, 0, kind) + begin, segment, tl.minimum(tl.load(places + 9) - begin, rows * LANES),
        _place(places, 1, tl.int32), _place(places, 2, tl.int64), _place(places, 3, tl.uint8),
        _place(places, 4, tl.int32), _place(places, 5, tl.int16), _place(places, 6, tl.int16), tl.load(places + 10),
        _place(places, 7, of_raw), rows, tl.load(places + 11).to(tl.int32),
        LANES, PRECISION, WIDTH, RAW_BITS, ROTATED,
    )  # fmt: skip


COLUMNS = 12


def row_of(prepared: Prepared, plane: DevicePlane, out: torch.Tensor, first: int) -> list[int]:
    """What `decode_several` is told of a plane whose segments are programs from number `first` on."""
    parts = out, plane.states, plane.starts, plane.ids, plane.table, plane.prefixes, plane.words, plane.raw
    return [*(part.data_ptr() for part in parts), first, prepared.count, plane.words.numel(), plane.constant]


def decode_several(
    prepared: Prepared, plane: DevicePlane, rotated: bool, owners: torch.Tensor, places: torch.Tensor
) -> None:
    """Decode all segments of several planes like this one, each to its own place, in one launch.

    owners: int32 [segments of all], the plane of each program. places: int64 [planes, COLUMNS], see `row_of`.
    """
    _decode_several[(len(owners),)](
        *(owners, places, prepared.rows),
        COLUMNS=COLUMNS,
        LANES=prepared.lanes,
        PRECISION=plane.precision,
        WIDTH=plane.width,
        RAW_BITS=plane.raw_bits,
        ROTATED=rotated,
        num_warps=1,
        enable_fp_fusion=False,
    )


def decode_plane(
    prepared: Prepared, plane: DevicePlane, segments: torch.Tensor, out: torch.Tensor, rotated: bool, packed: bool
) -> None:
    """As reference.decode_plane."""
    if not len(segments):
        return
    _decode[(len(segments),)](
        *(out, segments, plane.states, plane.starts, plane.ids, plane.table, plane.prefixes, plane.words),
        *(plane.words.numel(), plane.raw, prepared.count, prepared.rows, plane.constant),
        LANES=prepared.lanes,
        PRECISION=plane.precision,
        WIDTH=plane.width,
        RAW_BITS=plane.raw_bits,
        ROTATED=rotated,
        PACKED=packed,
        num_warps=1,
        enable_fp_fusion=False,
    )
