"""KIVI's codes of 2, 4 and 8 bits in Triton: one warp a program, and no code goes through shared memory.

A tensor core wants two numbers of float16 in a register that lie beside each other along the dimension that a product
sums over: channels of keys, tokens of values. Codes lie beside each other along the other one. So two rows are paired
before they are unpacked, a half of a word of each in one word, and a mask then gives both numbers at once.

A masked code stays where it stands and is read as a float16 below the normal ones: code * 2^(bit - 24), without loss.
Scores and sums are multiplied by what is missing. Words, eight at least, run fastest along a product's rows, as
registers do: so a thread uses all codes of a word it has read.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from squeeze.kv.grouped import GroupedCoder
from squeeze.kv.view import LayerView

__all__ = ["decode", "fits", "units"]

_LEAST = 16  # bytes of a row, or channels of a group: eight units of two bytes
_MOST = 1024  # numbers of a tile of scores, queries or sums: so much one warp has registers for


@triton.jit  # type: ignore[untyped-decorator]
def _dealt(row):  # type: ignore[no-untyped-def]
    """Which row is read into that place of shared memory: four lanes, whose rows are four apart, then read from four
    banks. Its own inverse."""
    return row // 16 * 16 + row % 4 * 4 + row // 4 % 4


@triton.jit  # type: ignore[untyped-decorator]
def _paired(words, PAIRS: tl.constexpr, UNITS: tl.constexpr, UNIT: tl.constexpr, UPPER: tl.constexpr):  # type: ignore[no-untyped-def]
    """words [2 PAIRS, UNITS] to [PAIRS, UNITS] uint32: the lower or UPPER 16 bits of two rows."""
    unsigned: tl.constexpr = tl.uint32 if UNIT == 4 else tl.uint16
    words = words.to(unsigned, bitcast=True)
    words = tl.reshape(tl.permute(tl.reshape(words, (PAIRS // 8, 4, 4, UNITS)), (0, 2, 1, 3)), (2 * PAIRS, UNITS))
    even, odd = tl.split(tl.permute(tl.reshape(words, (PAIRS, 2, UNITS)), (0, 2, 1)))
    if UNIT == 2:
        return even.to(tl.uint32) | odd.to(tl.uint32) << 16
    elif UPPER:
        return even >> 16 | odd >> 16 << 16
    else:
        return even & 0xFFFF | odd << 16


@triton.jit  # type: ignore[untyped-decorator]
def _planes(pairs, FIRST: tl.constexpr, COUNT: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """COUNT planes of a byte of each half, from plane FIRST on, [..., 2] for each doubling."""
    if COUNT == 1:
        mask: tl.constexpr = ((1 << WIDTH) - 1) << (FIRST * WIDTH)
        return pairs & (mask | mask << 16)
    else:
        lower = _planes(pairs, FIRST, COUNT // 2, WIDTH)
        upper = _planes(pairs, FIRST + COUNT // 2, COUNT // 2, WIDTH)
        return tl.join(lower, upper)


@triton.jit  # type: ignore[untyped-decorator]
def _codes(  # type: ignore[no-untyped-def]
    words, PAIRS: tl.constexpr, UNITS: tl.constexpr, UNIT: tl.constexpr, WIDTH: tl.constexpr,
    FIRST: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """COUNT planes of words [2 PAIRS, UNITS] of UNIT bytes, from plane FIRST on, [UNIT COUNT UNITS, 2 PAIRS] in the
    order of column_of, in float16, but for a factor of factor_of."""
    lower = _paired(words, PAIRS, UNITS, UNIT, False)
    found = tl.join(_planes(lower, FIRST, COUNT, WIDTH), _planes(lower >> 8, FIRST, COUNT, WIDTH))
    if UNIT == 4:
        upper = _paired(words, PAIRS, UNITS, UNIT, True)
        found = tl.join(found, tl.join(_planes(upper, FIRST, COUNT, WIDTH), _planes(upper >> 8, FIRST, COUNT, WIDTH)))
    found = tl.join(found.to(tl.uint16), (found >> 16).to(tl.uint16))  # [PAIRS, UNITS, planes, byte, half, of a pair]
    if UNIT * COUNT == 2:
        found = tl.permute(found, (2, 1, 0, 3))
    elif UNIT * COUNT == 4:
        found = tl.permute(found, (3, 2, 1, 0, 4))
    elif UNIT * COUNT == 8:
        found = tl.permute(found, (4, 3, 2, 1, 0, 5))
    else:
        found = tl.permute(found, (5, 4, 3, 2, 1, 0, 6))
    return tl.reshape(found, (UNIT * COUNT * UNITS, 2 * PAIRS)).to(tl.float16, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def _column_of(  # type: ignore[no-untyped-def]
    place, BYTES: tl.constexpr, UNITS: tl.constexpr, UNIT: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr
):  # fmt: skip
    """Of the code in that place of what `_codes` returns, which of a row of BYTES bytes it is."""
    unit, plane, byte = place % UNITS, place // UNITS % COUNT, place // (UNITS * COUNT)
    return (FIRST + plane) * BYTES + unit * UNIT + byte


@triton.jit  # type: ignore[untyped-decorator]
def _factor_of(place, UNITS: tl.constexpr, WIDTH: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]
    """That a code in that place is to be multiplied by: 2^(24 - bit)."""
    bit = (FIRST + place // UNITS % COUNT) * WIDTH
    return ((127 + 24 - bit) << 23).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def _sum_of_eighths(x, T: tl.constexpr, G: tl.constexpr):  # type: ignore[no-untyped-def]
    """[T, G] to [8, G]: sums of what one thread has."""
    return tl.sum(tl.reshape(x, (T // 8, 8, G)), 0)


@triton.jit  # type: ignore[untyped-decorator]
def _of_tokens(numbers, T: tl.constexpr, GROUPS: tl.constexpr, UNITS: tl.constexpr, UNIT: tl.constexpr):  # type: ignore[no-untyped-def]
    """[T GROUPS] in the order of memory to [T, GROUPS], tokens in the order of the scores."""
    apart = tl.reshape(numbers, (T // (UNITS * UNIT), UNITS, UNIT, GROUPS))
    return tl.reshape(tl.permute(apart, (2, 0, 1, 3)), (T, GROUPS))


@triton.jit  # type: ignore[untyped-decorator]
def _columns(numbers, GROUPS: tl.constexpr, T: tl.constexpr):  # type: ignore[no-untyped-def]
    """[T, GROUPS] to a tuple of [T]."""
    if GROUPS == 1:
        return (tl.reshape(numbers, (T,)),)
    elif GROUPS == 2:
        return tl.split(numbers)
    else:
        even, odd = tl.split(tl.permute(tl.reshape(numbers, (T, 2, GROUPS // 2)), (0, 2, 1)))
        return _columns(even, GROUPS // 2, T) + _columns(odd, GROUPS // 2, T)


@triton.jit  # type: ignore[untyped-decorator]
def decode(  # type: ignore[no-untyped-def]
    query, k_codes, k_scales, k_leasts, v_codes, v_scales, v_leasts,
    k_stride_b, k_stride_h, ks_stride_b, ks_stride_h, v_stride_b, v_stride_h, vs_stride_b, vs_stride_h,
    tops, masses, sums, heads, blocks, per_split, scaling,
    GROUP: tl.constexpr, G: tl.constexpr, T: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    K_WIDTH: tl.constexpr, V_WIDTH: tl.constexpr, GROUPS: tl.constexpr, K_UNIT: tl.constexpr, V_UNIT: tl.constexpr,
):  # fmt: skip
    """As kernel._decode, for what `fits`."""
    K_BYTES: tl.constexpr = T * K_WIDTH // 8  # of a row
    V_BYTES: tl.constexpr = DV * V_WIDTH // 8
    K_UNITS: tl.constexpr = K_BYTES // K_UNIT
    PLANES: tl.constexpr = 8 // K_WIDTH
    CHANNELS: tl.constexpr = DV // GROUPS  # that share a scale: one or more planes of all bytes, or one of some
    SOME: tl.constexpr = CHANNELS if CHANNELS < V_BYTES else V_BYTES
    V_UNITS: tl.constexpr = SOME // V_UNIT
    V_PLANES: tl.constexpr = CHANNELS // SOME

    row, split, splits = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    b, h = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    k_codes += (b * k_stride_b + h * k_stride_h) * (4 // K_UNIT)
    k_scales += b * ks_stride_b + h * ks_stride_h
    k_leasts += b * ks_stride_b + h * ks_stride_h
    v_codes += (b * v_stride_b + h * v_stride_h) * (4 // V_UNIT)
    v_scales += b * vs_stride_b + h * vs_stride_h
    v_leasts += b * vs_stride_b + h * vs_stride_h

    g, d, place = tl.arange(0, G), tl.arange(0, D), tl.arange(0, T)
    token = _column_of(_dealt(place), K_BYTES, K_UNITS, K_UNIT, 0, PLANES)
    factor = _factor_of(place, K_UNITS, K_WIDTH, 0, PLANES)
    k_word = _dealt(d)[:, None] * K_UNITS + tl.arange(0, K_UNITS)[None, :]
    v_word = token[:, None] * (V_BYTES // V_UNIT) + tl.arange(0, V_UNITS)[None, :]
    of_token = tl.arange(0, T * GROUPS)

    q = tl.load(query + (row.to(tl.int64) * GROUP + g[None, :]) * D + d[:, None], mask=(g < GROUP)[None, :], other=0)
    q = q.to(tl.float32) * scaling  # [D, G]
    top = tl.full((G,), float("-inf"), tl.float32)
    mass = tl.zeros((8, G), tl.float32)
    totals = ()
    leasts = ()
    for _ in tl.static_range(GROUPS):
        totals += (tl.zeros((CHANNELS, G), tl.float32),)  # type: ignore[assignment]
        leasts += (tl.zeros((8, G), tl.float32),)  # type: ignore[assignment]
    for block in tl.range(split * per_split, tl.minimum((split + 1) * per_split, blocks), num_stages=2):
        words = tl.load(k_codes + block * (D * K_UNITS) + k_word)
        keys = _codes(words, D // 2, K_UNITS, K_UNIT, K_WIDTH, 0, PLANES)
        scale = tl.load(k_scales + block * D + d).to(tl.float32)
        least = tl.load(k_leasts + block * D + d).to(tl.float32)
        scores = tl.dot(keys, (q * scale[:, None]).to(tl.float16))
        scores = scores * factor[:, None] + tl.sum(q * least[:, None], 0)[None, :]

        higher = tl.maximum(top, tl.max(scores, 0))
        weights = tl.exp2(scores - higher[None, :])
        fade = tl.exp2(top - higher)[None, :]
        mass = mass * fade + _sum_of_eighths(weights, T, G)
        top = higher

        first = block * (T * GROUPS)
        v_scale = _of_tokens(tl.load(v_scales + first + of_token), T, GROUPS, K_UNITS, K_UNIT)
        v_least = _of_tokens(tl.load(v_leasts + first + of_token), T, GROUPS, K_UNITS, K_UNIT)
        v_scale_of, v_least_of = _columns(v_scale, GROUPS, T), _columns(v_least, GROUPS, T)
        at = v_codes + block * (T * V_BYTES // V_UNIT) + v_word
        if SOME == V_BYTES:
            words = tl.load(at)
        new_totals = ()
        new_leasts = ()
        for part in tl.static_range(GROUPS):
            if SOME < V_BYTES:
                words = tl.load(at + part * CHANNELS % V_BYTES // V_UNIT)
            values = _codes(words, T // 2, V_UNITS, V_UNIT, V_WIDTH, part * CHANNELS // V_BYTES, V_PLANES)
            scaled = (weights * v_scale_of[part].to(tl.float32)[:, None]).to(tl.float16)
            low = _sum_of_eighths(weights * v_least_of[part].to(tl.float32)[:, None], T, G)
            new_totals += (tl.dot(values, scaled, totals[part] * fade),)  # type: ignore[assignment, misc]
            new_leasts += (leasts[part] * fade + low,)  # type: ignore[assignment, misc]
        totals, leasts = new_totals, new_leasts

    out = (row.to(tl.int64) * splits + split) * GROUP + g
    tl.store(tops + out, top, mask=g < GROUP)
    tl.store(masses + out, tl.sum(mass, 0), mask=g < GROUP)
    for part in tl.static_range(GROUPS):
        place = tl.arange(0, CHANNELS)
        channel = (
            _column_of(place, V_BYTES, V_UNITS, V_UNIT, part * CHANNELS // V_BYTES, V_PLANES)
            + part * CHANNELS % V_BYTES
        )
        total = totals[part] * _factor_of(place, V_UNITS, V_WIDTH, part * CHANNELS // V_BYTES, V_PLANES)[:, None]
        total += tl.sum(leasts[part], 0)[None, :]
        tl.store(sums + out[None, :] * DV + channel[:, None], total, mask=(g < GROUP)[None, :])


def fits(query: torch.Tensor, view: LayerView) -> bool:
    """Whether `decode` takes what kernel.fits says yes to: queries of 16 bits, KIVI's codes of 2, 4 or 8 bits on an
    even grid, rows of eight units at least, and tiles that one warp can hold."""
    group, fields = view.stores[0]
    keys, values = group.keys, group.values
    assert isinstance(keys, GroupedCoder) and isinstance(values, GroupedCoder)
    kivi = (keys.along, values.along, keys.points, values.points) == ("tokens", "channels", "even", "even")
    k_groups, v_groups = (fields[f"{kind}.scale"].shape[-1] for kind in ("keys", "values"))
    if not kivi or k_groups != 1 or query.dtype.itemsize != 2 or min(keys.width, values.width) < 2:
        return False
    (_, kv_heads, _, size), value_size = view.residual[0].shape, view.residual[1].shape[3]
    if max(query.shape[1] // kv_heads, 8) * max(view.block, size, value_size) > _MOST:
        return False
    rows = (fields[f"{kind}.codes"].shape[-1] for kind in ("keys", "values"))
    return min(*rows, value_size // v_groups) >= _LEAST


def units(view: LayerView) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of keys and values, in units of four bytes, or of two where less than eight of four are read at once."""
    _, fields = view.stores[0]
    keys, values = fields["keys.codes"], fields["values.codes"]
    channels = view.residual[1].shape[3] // fields["values.scale"].shape[-1]
    return _units(keys, keys.shape[-1]), _units(values, min(values.shape[-1], channels))


def _units(codes: torch.Tensor, nbytes: int) -> torch.Tensor:
    return codes.view(torch.int32 if nbytes >= 2 * _LEAST else torch.int16)
