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
def _look_up(table, entries, state, PRECISION: tl.constexpr, FIELD: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of each lane: its state after its slot, before it takes a word, and its prefix. See DevicePlane."""
    slot = (state & ((1 << PRECISION) - 1)).to(tl.int32)
    quotient = state >> PRECISION
    if FIELD == 0:
        entry = tl.load(entries + tl.load(table + slot).to(tl.int32)).to(tl.uint64)
        low = entry.to(tl.uint32)
        return (low & 0xFFFF) * quotient + (slot.to(tl.uint32) - (low >> 16)), (entry >> 32).to(tl.uint32)
    else:
        entry = tl.load(table + slot).to(tl.uint32)
        mask: tl.constexpr = (1 << FIELD) - 1
        stepped = ((entry & mask) + 1) * quotient + (entry >> FIELD & mask)
        name = (entry >> 24).to(tl.int32) if FIELD == 12 else slot
        return stepped, tl.load(entries + name).to(tl.uint32) & 0xFFFF


@triton.jit  # type: ignore[untyped-decorator]
def _of_segment(table, entries, number, PRECISION: tl.constexpr, FIELD: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where the table begins with a number, and its entries."""
    if FIELD == 0:
        entries += number * 256
    if FIELD == 13:
        entries += number << PRECISION
    return table + (number << PRECISION), entries


@triton.jit  # type: ignore[untyped-decorator]
def _ballot(low):  # type: ignore[no-untyped-def]
    """The lanes of which something holds, told each lane."""
    return tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.u32 p, $1, 0; vote.sync.ballot.b32 $0, p, -1; }",
        "=r,r",
        [low.to(tl.uint32)],
        dtype=tl.uint32,
        is_pure=True,
        pack=1,
    )


@triton.jit  # type: ignore[untyped-decorator]
def _ask_for(place):  # type: ignore[no-untyped-def]
    """Bring what lies at addresses nearer, to the cache that all share, and wait for nothing."""
    tl.inline_asm_elementwise(
        "{ prefetch.global.L2 [$1]; mov.u32 $0, 0; }", "=r,l", [place], dtype=tl.uint32, is_pure=False, pack=1
    )


@triton.jit  # type: ignore[untyped-decorator]
def _load_until(source, place, end):  # type: ignore[no-untyped-def]
    """What lies at places before `end`, and 0 for others; it is read once, and tables are to stay in the cache."""
    return tl.load(source + place, mask=place < end, other=0, eviction_policy="evict_first")


@triton.jit  # type: ignore[untyped-decorator]
def _two_words(words, place, limit):  # type: ignore[no-untyped-def]
    low = _load_until(words, place, limit).to(tl.uint16).to(tl.uint64)
    return low | _load_until(words, place + 32, limit).to(tl.uint16).to(tl.uint64) << 16


@triton.jit  # type: ignore[untyped-decorator]
def _decode_by_warp(  # type: ignore[no-untyped-def]
    out, segment, size, states, starts, ids, table, entries, words, limit, raw, rows,
    PRECISION: tl.constexpr, FIELD: tl.constexpr, WIDTH: tl.constexpr, RAW_BITS: tl.constexpr, ROTATED: tl.constexpr,
    WARM: tl.constexpr, BALLOT: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """`_decode_segment` where lanes are those of a warp.

    A row waits for no memory but the table's: words and raw bits of the next rows are in registers, and those after
    them on their way. They are asked for in the outer loop: the compiler lets an inner one run while they come, but
    waits where it would have to follow them through a branch.
    """
    lane = tl.arange(0, 32)
    table, entries = _of_segment(table, entries, tl.load(ids + segment).to(tl.int32), PRECISION, FIELD)
    state = tl.load(states + segment * 32 + lane).to(tl.uint32)
    start = tl.load(starts + segment)
    words += start
    limit = tl.minimum(limit - start, 1 << 30).to(tl.int32)
    place = lane  # of the next word to load
    window = _two_words(words, place, limit)  # of a lane: one of every 32, `blocks` of them
    first, second = _load_until(words, place + 64, limit), _load_until(words, place + 96, limit)
    place += 128
    blocks = tl.zeros((32,), tl.int32) + 2
    used = tl.zeros((32,), tl.int32)  # words of the first block
    spare = tl.zeros((), tl.int32)  # words until blocks are to be 2, but for those of the last row, which is `late`
    late = used
    bits = tl.zeros((32,), tl.uint64)  # raw ones that are at hand, `have` of them
    have = tl.zeros((), tl.int32)
    raw_place, raw_end, coming = lane, lane, bits.to(tl.int32)
    if RAW_BITS > 0:
        raw += segment * ((rows * RAW_BITS + 31) // 32 * 32)
        raw_end = ((size.to(tl.int32) + 31 - lane) // 32 * RAW_BITS + 31) // 32 * 32
        bits = _load_until(raw, raw_place, raw_end).to(tl.uint32).to(tl.uint64)
        coming = _load_until(raw, raw_place + 32, raw_end)
        raw_place += 64
        have += 32
    if AHEAD:
        for piece in tl.static_range(2):
            _ask_for(words + tl.minimum(place + 64 * piece + lane, limit - 1))
            if RAW_BITS > 0:
                _ask_for(raw + tl.minimum(raw_place + 32 * piece, raw_end - 1))
    if WARM and PRECISION >= 10:  # a part of each 32 bytes of the table, so that it is near: what is added is 0
        apart: tl.constexpr = 32 if FIELD == 0 else 8
        near = tl.load(table + tl.arange(0, (1 << PRECISION) // apart) * apart).to(tl.int32) & 0xFF
        spare += tl.max((near > rows * 65536).to(tl.int32), 0)
    out += lane
    left = size.to(tl.int32) // 32
    while left > 0:
        if spare <= 0:
            pair = first.to(tl.uint16).to(tl.uint32) | second.to(tl.uint32) << 16
            window |= pair.to(tl.uint64) << (blocks * 16).to(tl.uint64)
            first = _load_until(words, place, limit)
            second = _load_until(words, place + 32, limit)
            place += 64
            blocks += 2
            spare += 64
            if AHEAD:
                _ask_for(words + tl.minimum(place + 64 + lane, limit - 1))
        if (have <= 32) & (RAW_BITS > 0):
            bits |= coming.to(tl.uint32).to(tl.uint64) << have.to(tl.uint64)
            coming = _load_until(raw, raw_place, raw_end)
            raw_place += 32
            have += 32
            if AHEAD:
                _ask_for(raw + tl.minimum(raw_place + 32, raw_end - 1))
        is_fed = True
        while is_fed:
            stepped, prefix = _look_up(table, entries, state, PRECISION, FIELD)
            spare -= tl.sum(late, 0)
            is_low = stepped < 32768
            if BALLOT:
                ones = _ballot(is_low)
            else:
                ones = tl.sum(tl.where(is_low, (1 << lane).to(tl.uint32), 0), 0)
            index = used + _count_bits(ones & ((1 << lane) - 1).to(tl.uint32)).to(tl.int32)
            both = tl.gather(window.to(tl.uint32), index & 31, 0) << ((index & 32 ^ 32) // 2).to(tl.uint32)
            state = tl.where(is_low, stepped << 16 | both >> 16, stepped)
            late = is_low.to(tl.int32)
            used += _count_bits(ones).to(tl.int32)
            is_over = used >= 32
            window = tl.where(is_over, window >> 16, window)
            blocks -= is_over.to(tl.int32)
            used &= 31
            value = _value(prefix, bits.to(tl.uint32), WIDTH, RAW_BITS, ROTATED)
            bits >>= RAW_BITS
            have -= RAW_BITS
            tl.store(out, value.to(out.dtype.element_ty))
            out += 32
            left -= 1
            is_fed = (spare > 0) & (have >= RAW_BITS) & (left > 0)
    if size % 32 > 0:
        present = lane < size % 32
        field = tl.zeros((32,), tl.uint32)
        if RAW_BITS > 0:
            bit = size.to(tl.int32) // 32 * RAW_BITS
            raw_place = bit // 32 * 32 + lane
            shift = (bit % 32).to(tl.uint32)
            field = tl.load(raw + raw_place, mask=present, other=0).to(tl.uint32) >> shift
            spilt = present & (raw_place + 32 < raw_end)
            field |= tl.load(raw + raw_place + 32, mask=spilt, other=0).to(tl.uint32) << 1 << (31 - shift)
        _, prefix = _look_up(table, entries, state, PRECISION, FIELD)
        value = _value(prefix, field, WIDTH, RAW_BITS, ROTATED)
        tl.store(out, value.to(out.dtype.element_ty), mask=present)


@triton.jit  # type: ignore[untyped-decorator]
def _value(prefix, raw, WIDTH: tl.constexpr, RAW_BITS: tl.constexpr, ROTATED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of a prefix, and of the lowest of raw bits."""
    value = prefix << RAW_BITS
    if RAW_BITS > 0:
        value |= raw & ((1 << RAW_BITS) - 1)
    if ROTATED:
        value = value >> 1 | value << (WIDTH - 1)
    return value


@triton.jit  # type: ignore[untyped-decorator]
def _decode_by_lanes(  # type: ignore[no-untyped-def]
    out, segment, size, states, starts, ids, table, entries, words, limit, raw, rows, constant,
    LANES: tl.constexpr, PRECISION: tl.constexpr, FIELD: tl.constexpr, WIDTH: tl.constexpr, RAW_BITS: tl.constexpr,
    ROTATED: tl.constexpr,
):  # fmt: skip
    """`_decode_segment` for any number of lanes."""
    lane = tl.arange(0, LANES)
    begin = segment * (rows * LANES)
    raw_begin = segment * (((rows * RAW_BITS + 31) // 32) * LANES)
    if PRECISION > 0:
        state = tl.load(states + segment * LANES + lane).to(tl.uint32)
        position = tl.load(starts + segment)
        table, entries = _of_segment(table, entries, tl.load(ids + segment).to(tl.int32), PRECISION, FIELD)
    for row in range(0, (size + LANES - 1) // LANES):
        index = row * LANES + lane
        present = index < size
        if RAW_BITS == WIDTH:
            value = tl.load(raw + begin + index, mask=present, other=0).to(tl.uint32)
        else:
            if PRECISION > 0:
                stepped, prefix = _look_up(table, entries, state, PRECISION, FIELD)
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


@triton.jit  # type: ignore[untyped-decorator]
def _decode_segment(  # type: ignore[no-untyped-def]
    out, segment, size, states, starts, ids, table, entries, words, limit, raw, rows, constant,
    LANES: tl.constexpr, PRECISION: tl.constexpr, WIDTH: tl.constexpr, RAW_BITS: tl.constexpr, ROTATED: tl.constexpr,
    FIELD: tl.constexpr, WARP: tl.constexpr, WARM: tl.constexpr, BALLOT: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """`size` values into `out`, where the first of them goes. No word is read from `limit` on: a damaged segment would
    take one for each of its values."""
    if PRECISION > 0 and RAW_BITS < WIDTH and LANES == 32 and WARP:
        _decode_by_warp(
            out, segment, size, states, starts, ids, table, entries, words, limit, raw, rows,
            PRECISION, FIELD, WIDTH, RAW_BITS, ROTATED, WARM, BALLOT, AHEAD,
        )  # fmt: skip
    else:
        _decode_by_lanes(
            out, segment, size, states, starts, ids, table, entries, words, limit, raw, rows, constant,
            LANES, PRECISION, FIELD, WIDTH, RAW_BITS, ROTATED,
        )  # fmt: skip


@triton.jit(do_not_specialize=("limit",))  # type: ignore[untyped-decorator]
def _decode(  # type: ignore[no-untyped-def]
    out, segments, states, starts, ids, table, entries, words, limit, raw, count, rows, constant,
    LANES: tl.constexpr, PRECISION: tl.constexpr, WIDTH: tl.constexpr, RAW_BITS: tl.constexpr,
    ROTATED: tl.constexpr, PACKED: tl.constexpr, FIELD: tl.constexpr, WARP: tl.constexpr,
    WARM: tl.constexpr, BALLOT: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0)
    segment = tl.load(segments + number)  # int64
    begin = segment * (rows * LANES)
    if PACKED:
        out += number.to(tl.int64) * (rows * LANES)
    else:
        out += begin
    _decode_segment(
        out, segment, tl.minimum(count - begin, rows * LANES), states, starts, ids, table, entries, words, limit, raw,
        rows, constant, LANES, PRECISION, WIDTH, RAW_BITS, ROTATED, FIELD, WARP, WARM, BALLOT, AHEAD,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _place(places, column: tl.constexpr, kind: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.load(places + column).to(tl.pointer_type(kind))


@triton.jit  # type: ignore[untyped-decorator]
def _decode_several(  # type: ignore[no-untyped-def]
    owners, places, rows,
    COLUMNS: tl.constexpr, LANES: tl.constexpr, PRECISION: tl.constexpr, WIDTH: tl.constexpr, RAW_BITS: tl.constexpr,
    ROTATED: tl.constexpr, FIELD: tl.constexpr, WARP: tl.constexpr, WARM: tl.constexpr,
    BALLOT: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """As `_decode`, of the planes that `places` [planes, COLUMNS] says: addresses, then numbers, as `row_of` writes."""
    number = tl.program_id(0).to(tl.int64)
    places += tl.load(owners + number).to(tl.int64) * COLUMNS
    kind: tl.constexpr = tl.uint8 if WIDTH == 8 else (tl.int16 if WIDTH == 16 else tl.int32)
    of_raw: tl.constexpr = kind if RAW_BITS == WIDTH else tl.int32
    of_table: tl.constexpr = tl.uint8 if FIELD == 0 else tl.int32
    of_entries: tl.constexpr = tl.int64 if FIELD == 0 else tl.int16
    segment = number - tl.load(places + 8)
    begin = segment * (rows * LANES)
    _decode_segment(
        _place(places, 0, kind) + begin, segment, tl.minimum(tl.load(places + 9) - begin, rows * LANES),
        _place(places, 1, tl.int32), _place(places, 2, tl.int64), _place(places, 3, tl.uint8),
        _place(places, 4, of_table), _place(places, 5, of_entries), _place(places, 6, tl.int16), tl.load(places + 10),
        _place(places, 7, of_raw), rows, tl.load(places + 11).to(tl.int32),
        LANES, PRECISION, WIDTH, RAW_BITS, ROTATED, FIELD, WARP, WARM, BALLOT, AHEAD,
    )  # fmt: skip


_HAS_PTX = not triton.knobs.runtime.interpret and torch.version.hip is None
# WARP: lanes of a warp in a way of their own. WARM: tables are read before they are needed. BALLOT, AHEAD: with
# instructions that Triton has no name for, one to learn whose lanes run low, and one to ask for memory early.
VARIANT = {"WARP": True, "WARM": False, "BALLOT": _HAS_PTX, "AHEAD": _HAS_PTX}
COLUMNS = 12


def row_of(prepared: Prepared, plane: DevicePlane, out: torch.Tensor, first: int) -> list[int]:
    """What `decode_several` is told of a plane whose segments are programs from number `first` on."""
    parts = out, plane.states, plane.starts, plane.ids, plane.table, plane.entries, plane.words, plane.raw
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
        FIELD=plane.field,
        **VARIANT,
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
        *(out, segments, plane.states, plane.starts, plane.ids, plane.table, plane.entries, plane.words),
        *(plane.words.numel(), plane.raw, prepared.count, prepared.rows, plane.constant),
        LANES=prepared.lanes,
        PRECISION=plane.precision,
        WIDTH=plane.width,
        RAW_BITS=plane.raw_bits,
        ROTATED=rotated,
        PACKED=packed,
        FIELD=plane.field,
        **VARIANT,
        num_warps=1,
        enable_fp_fusion=False,
    )
