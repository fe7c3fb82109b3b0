"""Decoding a plane in Triton: a program takes a segment, and a lane of the warp a lane of rANS.

In each row, every lane looks up its slot, steps its state, and takes its next word if the state is low. A mask of these
lanes tells whose word is whose. A row needs the states of the row before, so latency counts:

- A table has one byte a slot, its symbol, from which the rest follows. The tables of all warps of a multiprocessor then
fit in its L1 cache. - An outer loop requests words and raw bits some rows ahead, and an inner one takes them from
registers, so that no row waits for memory. - A warp computes its mask by one instruction, a ballot.

Words and raw bits are read coalesced, and values are written coalesced. A plane that is a whole tensor is written once,
in its own type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from squeeze.packing.device_decode import DevicePlane, Prepared


@triton.jit  # type: ignore[untyped-decorator]
def _count_bits(x):  # type: ignore[no-untyped-def]
    """Count the ones in each uint32 of a block; compiles to one instruction."""
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return (x * 0x01010101) >> 24


@triton.jit  # type: ignore[untyped-decorator]
def _look_up(table, entries, state, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return for each lane its state after its slot, before it takes a word, and its prefix. See DevicePlane."""
    slot = (state & ((1 << PRECISION) - 1)).to(tl.int32)
    quotient = state >> PRECISION
    entry = tl.load(entries + tl.load(table + slot).to(tl.int32)).to(tl.uint64)
    low = entry.to(tl.uint32)
    return (low & 0xFFFF) * quotient + (slot.to(tl.uint32) - (low >> 16)), (entry >> 32).to(tl.uint32)


@triton.jit  # type: ignore[untyped-decorator]
def _mask_of(holds, lane, PTX: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the mask of the lanes of a warp for which `holds` is true, to every lane."""
    if PTX:
        return tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.u32 p, $1, 0; vote.sync.ballot.b32 $0, p, -1; }",
            "=r,r",
            [holds.to(tl.uint32)],
            dtype=tl.uint32,
            is_pure=True,
            pack=1,
        )
    else:
        return tl.sum(tl.where(holds, (1 << lane).to(tl.uint32), 0), 0)


@triton.jit  # type: ignore[untyped-decorator]
def _prefetch(place, PTX: tl.constexpr):  # type: ignore[no-untyped-def]
    """Prefetch addresses to the L2 cache, without waiting."""
    if PTX:
        tl.inline_asm_elementwise(
            "{ prefetch.global.L2 [$1]; mov.u32 $0, 0; }", "=r,l", [place], dtype=tl.uint32, is_pure=False, pack=1
        )


@triton.jit  # type: ignore[untyped-decorator]
def _load_until(source, place, end):  # type: ignore[no-untyped-def]
    """Load places before `end`, others as 0. They are read once, so tables stay in the cache instead."""
    return tl.load(source + place, mask=place < end, other=0, eviction_policy="evict_first")


@triton.jit  # type: ignore[untyped-decorator]
def _two_words(words, place, limit):  # type: ignore[no-untyped-def]
    """Return for each lane the word at its place, and above it that of 32 places further."""
    low = _load_until(words, place, limit).to(tl.uint16).to(tl.uint64)
    return low | _load_until(words, place + 32, limit).to(tl.uint16).to(tl.uint64) << 16


@triton.jit  # type: ignore[untyped-decorator]
def _decode_by_warp(  # type: ignore[no-untyped-def]
    out, segment, size, states, starts, ids, table, entries, words, limit, raw, rows,
    PRECISION: tl.constexpr, WIDTH: tl.constexpr, RAW_BITS: tl.constexpr, ROTATED: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Decode as `_decode_segment` does, with the 32 lanes of a warp.

    A row waits for no memory but the table's: words and raw bits of the next rows are in registers, and those after
    them are requested. They are requested in the outer loop, because the compiler would wait for them in a branch of
    the inner one.
    """
    lane = tl.arange(0, 32)
    number = tl.load(ids + segment).to(tl.int32)
    table += number << PRECISION
    entries += number * 256
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
    spare = tl.zeros((), tl.int32)  # words until `blocks` must be 2 again, without those of the last row (`late`)
    late = used
    bits = tl.zeros((32,), tl.uint64)  # raw bits in registers, `have` of them
    have = tl.zeros((), tl.int32)
    raw_place, raw_end, coming = lane, lane, bits.to(tl.int32)
    if RAW_BITS > 0:
        raw += segment * ((rows * RAW_BITS + 31) // 32 * 32)
        raw_end = ((size.to(tl.int32) + 31 - lane) // 32 * RAW_BITS + 31) // 32 * 32
        bits = _load_until(raw, raw_place, raw_end).to(tl.uint32).to(tl.uint64)
        coming = _load_until(raw, raw_place + 32, raw_end)
        raw_place += 64
        have += 32
    for piece in tl.static_range(2):
        _prefetch(words + tl.minimum(place + 64 * piece + lane, limit - 1), PTX)
        if RAW_BITS > 0:
            _prefetch(raw + tl.minimum(raw_place + 32 * piece, raw_end - 1), PTX)
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
            _prefetch(words + tl.minimum(place + 64 + lane, limit - 1), PTX)
        if (have <= 32) & (RAW_BITS > 0):
            bits |= coming.to(tl.uint32).to(tl.uint64) << have.to(tl.uint64)
            coming = _load_until(raw, raw_place, raw_end)
            raw_place += 32
            have += 32
            _prefetch(raw + tl.minimum(raw_place + 32, raw_end - 1), PTX)
        is_fed = True
        while is_fed:
            stepped, prefix = _look_up(table, entries, state, PRECISION)
            spare -= tl.sum(late, 0)
            is_low = stepped < 32768
            ones = _mask_of(is_low, lane, PTX)
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
        _decode_last_row(
            out, size.to(tl.int32), state, table, entries, raw, raw_end, lane, PRECISION, WIDTH, RAW_BITS, ROTATED
        )


@triton.jit  # type: ignore[untyped-decorator]
def _decode_last_row(  # type: ignore[no-untyped-def]
    out, size, state, table, entries, raw, raw_end, lane,
    PRECISION: tl.constexpr, WIDTH: tl.constexpr, RAW_BITS: tl.constexpr, ROTATED: tl.constexpr,
):  # fmt: skip
    """Decode the incomplete last row of a segment of `size` values."""
    present = lane < size % 32
    field = tl.zeros((32,), tl.uint32)
    if RAW_BITS > 0:
        bit = size // 32 * RAW_BITS
        place = bit // 32 * 32 + lane
        shift = (bit % 32).to(tl.uint32)
        field = tl.load(raw + place, mask=present, other=0).to(tl.uint32) >> shift
        spilt = present & (place + 32 < raw_end)
        field |= tl.load(raw + place + 32, mask=spilt, other=0).to(tl.uint32) << 1 << (31 - shift)
    _, prefix = _look_up(table, entries, state, PRECISION)
    value = _value(prefix, field, WIDTH, RAW_BITS, ROTATED)
    tl.store(out, value.to(out.dtype.element_ty), mask=present)


@triton.jit  # type: ignore[untyped-decorator]
def _value(prefix, raw, WIDTH: tl.constexpr, RAW_BITS: tl.constexpr, ROTATED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the value with a prefix and the lowest raw bits."""
    value = prefix << RAW_BITS
    if RAW_BITS > 0:
        value |= raw & ((1 << RAW_BITS) - 1)
    if ROTATED:
        value = value >> 1 | value << (WIDTH - 1)
    return value


@triton.jit  # type: ignore[untyped-decorator]
def _decode_by_lanes(  # type: ignore[no-untyped-def]
    out, segment, size, states, starts, ids, table, entries, words, limit, raw, rows, constant,
    LANES: tl.constexpr, PRECISION: tl.constexpr, WIDTH: tl.constexpr, RAW_BITS: tl.constexpr, ROTATED: tl.constexpr,
):  # fmt: skip
    """Decode as `_decode_segment` does, with any number of lanes."""
    lane = tl.arange(0, LANES)
    begin = segment * (rows * LANES)
    raw_begin = segment * (((rows * RAW_BITS + 31) // 32) * LANES)
    if PRECISION > 0:
        state = tl.load(states + segment * LANES + lane).to(tl.uint32)
        position = tl.load(starts + segment)
        number = tl.load(ids + segment).to(tl.int32)
        table += number << PRECISION
        entries += number * 256
    for row in range(0, (size + LANES - 1) // LANES):
        index = row * LANES + lane
        present = index < size
        if RAW_BITS == WIDTH:
            value = tl.load(raw + begin + index, mask=present, other=0).to(tl.uint32)
        else:
            if PRECISION > 0:
                stepped, prefix = _look_up(table, entries, state, PRECISION)
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
    PTX: tl.constexpr,
):  # fmt: skip
    """Decode `size` values of a segment into `out`, which begins with the first of them.

    No word is read from `limit` on, since a damaged segment would take a word for each of its values.
    """
    if PRECISION > 0 and RAW_BITS < WIDTH and LANES == 32:
        _decode_by_warp(
            out, segment, size, states, starts, ids, table, entries, words, limit, raw, rows,
            PRECISION, WIDTH, RAW_BITS, ROTATED, PTX,
        )  # fmt: skip
    else:
        _decode_by_lanes(
            out, segment, size, states, starts, ids, table, entries, words, limit, raw, rows, constant,
            LANES, PRECISION, WIDTH, RAW_BITS, ROTATED,
        )  # fmt: skip


@triton.jit(do_not_specialize=("limit",))  # type: ignore[untyped-decorator]
def _decode(  # type: ignore[no-untyped-def]
    out, segments, states, starts, ids, table, entries, words, limit, raw, count, rows, constant,
    LANES: tl.constexpr, PRECISION: tl.constexpr, WIDTH: tl.constexpr, RAW_BITS: tl.constexpr,
    ROTATED: tl.constexpr, PACKED: tl.constexpr, PTX: tl.constexpr,
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
        rows, constant, LANES, PRECISION, WIDTH, RAW_BITS, ROTATED, PTX,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _place(places, column: tl.constexpr, kind: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.load(places + column).to(tl.pointer_type(kind))


@triton.jit  # type: ignore[untyped-decorator]
def _decode_several(  # type: ignore[no-untyped-def]
    owners, places, rows,
    COLUMNS: tl.constexpr, LANES: tl.constexpr, PRECISION: tl.constexpr, WIDTH: tl.constexpr, RAW_BITS: tl.constexpr,
    ROTATED: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Decode as `_decode` does, for planes given by rows of `places` [planes, COLUMNS], see `row_of`."""
    number = tl.program_id(0).to(tl.int64)
    places += tl.load(owners + number).to(tl.int64) * COLUMNS
    kind: tl.constexpr = tl.uint8 if WIDTH == 8 else (tl.int16 if WIDTH == 16 else tl.int32)
    of_raw: tl.constexpr = kind if RAW_BITS == WIDTH else tl.int32
    segment = number - tl.load(places + 8)
    begin = segment * (rows * LANES)
    _decode_segment(
        _place(places, 0, kind) + begin, segment, tl.minimum(tl.load(places + 9) - begin, rows * LANES),
        _place(places, 1, tl.int32), _place(places, 2, tl.int64), _place(places, 3, tl.uint8),
        _place(places, 4, tl.uint8), _place(places, 5, tl.int64), _place(places, 6, tl.int16), tl.load(places + 10),
        _place(places, 7, of_raw), rows, tl.load(places + 11).to(tl.int32),
        LANES, PRECISION, WIDTH, RAW_BITS, ROTATED, PTX,
    )  # fmt: skip


COLUMNS = 12


def _has_ptx() -> bool:
    """Return whether kernels may use PTX instructions that Triton does not expose."""
    return not triton.knobs.runtime.interpret and torch.version.hip is None


def row_of(prepared: Prepared, plane: DevicePlane, out: torch.Tensor, first: int) -> list[int]:
    """Return the row for `decode_several` of a plane whose segments are programs from number `first` on."""
    parts = out, plane.states, plane.starts, plane.ids, plane.table, plane.entries, plane.words, plane.raw
    return [*(part.data_ptr() for part in parts), first, prepared.count, plane.words.numel(), plane.constant]


def decode_several(
    prepared: Prepared, plane: DevicePlane, rotated: bool, owners: torch.Tensor, places: torch.Tensor
) -> None:
    """Decode all segments of several planes like `plane`, each to its own place, in one launch.

    Args:
        prepared: a payload with the same geometry.
        plane: a plane of the same kind.
        rotated: whether values are rotated.
        owners: the plane of each program, int32 [segments of all].
        places: int64 [planes, COLUMNS], see `row_of`.
    """
    with torch.cuda.device_of(owners):
        _decode_several[(len(owners),)](
            *(owners, places, prepared.rows),
            COLUMNS=COLUMNS,
            LANES=prepared.lanes,
            PRECISION=plane.precision,
            WIDTH=plane.width,
            RAW_BITS=plane.raw_bits,
            ROTATED=rotated,
            PTX=_has_ptx(),
            num_warps=1,
            enable_fp_fusion=False,
        )


def decode_plane(
    prepared: Prepared, plane: DevicePlane, segments: torch.Tensor, out: torch.Tensor, rotated: bool, packed: bool
) -> None:
    """Decode as `reference.decode_plane` does."""
    if not len(segments):
        return
    with torch.cuda.device_of(out):
        _decode[(len(segments),)](
            *(out, segments, plane.states, plane.starts, plane.ids, plane.table, plane.entries, plane.words),
            *(plane.words.numel(), plane.raw, prepared.count, prepared.rows, plane.constant),
            LANES=prepared.lanes,
            PRECISION=plane.precision,
            WIDTH=plane.width,
            RAW_BITS=plane.raw_bits,
            ROTATED=rotated,
            PACKED=packed,
            PTX=_has_ptx(),
            num_warps=1,
            enable_fp_fusion=False,
        )
