"""The code of a value on a grid, which is the level nearest to it in units of its scale, and the values of codes."""

import numpy as np

from squeeze.numerics.jit import inline, kernel, part
from squeeze.packing.tensors.grid_levels import (
    AFFINE,
    COUNTS,
    E4M3,
    E5M2,
    FP4,
    INT,
    NF4,
    SIGNED,
    TABLES,
    rebuilt,
    rounded,
    value_of,
)

__all__ = ["code_of", "codes_of_bands", "from_firsts", "inverse_of", "place_of", "rebuild", "widen"]

_BF16 = 0  # see FORMS


@inline
def _float_place(magnitude, mantissa, bias):
    """Return the place of the nearest number of a float format, which may be past its last one."""
    least = np.int64((1024 - bias) << 52).view(np.float64)  # of the numbers that are not subnormal
    if magnitude < least:
        return np.int64(np.rint(magnitude / least * (1 << mantissa)))
    bits = np.int64(np.float32(min(magnitude, 1e9)).view(np.int32))
    shift = 23 - mantissa
    return ((bits + (1 << (shift - 1)) - 1 + (bits >> shift & 1)) >> shift) - ((127 - bias) << mantissa)


@inline
def place_of(magnitude, kind, side):
    """Return the place of the level nearest to a magnitude in units of the scale, which may be past the last level."""
    if kind == E4M3:
        return _float_place(magnitude, 3, 7)
    if kind == E5M2:
        return _float_place(magnitude, 2, 15)
    if kind == FP4:
        return _float_place(magnitude, 1, 1)
    if kind == NF4:
        place = 0
        for k in range(COUNTS[NF4, side] - 1):
            place += 2 * magnitude > np.float64(TABLES[NF4, side, k]) + np.float64(TABLES[NF4, side, k + 1])
        return np.int64(place)
    return np.int64(min(np.rint(magnitude), 1e6))


@inline
def inverse_of(scale):
    """Return 1 / scale, or 0 for no scale."""
    return 1.0 / np.float64(scale) if scale > 0 else 0.0


@inline
def code_of(word, form, kind, inverse, offset):
    """Return the whole number of a level (INT, AFFINE), or its code as in `levels_of`.

    Args:
        word: the value.
        form: its type, see FORMS.
        kind: the levels.
        inverse: see `inverse_of`.
        offset: the offset (AFFINE).
    """
    value = np.float64(value_of(word, form))
    if kind == AFFINE:
        return np.int64(np.rint((value - offset) * inverse))
    side = 1 if np.float32(value).view(np.int32) < 0 else 0
    place = place_of(abs(value) * inverse, kind, side)
    if kind == INT:
        return -place if side else place
    return min(place, 127) | side << 7


@part
def _codes_of_bf16(values, begin, end, kind, inverse, offset, first, out):
    """Fill the codes of values of a tile, as `code_of` has them, in loops that compile to vectors."""
    if kind == SIGNED:
        for k in range(begin, end):
            bits = np.uint32(values[k]) << np.uint32(16)
            magnitude = np.int32(bits & np.uint32(0x7FFFFFFF)).view(np.float32)
            at = min(np.int32(np.rint(np.float64(magnitude) * inverse)), np.int32(127))
            out[k] = np.uint8(at | np.int32(np.uint32(bits >> np.uint32(31)) << np.uint32(7)))
        return
    start, least = np.float64(offset if kind == AFFINE else 0), np.int32(first)
    for k in range(begin, end):
        value = np.float64(np.int32(np.uint32(values[k]) << np.uint32(16)).view(np.float32))
        out[k] = np.uint8(np.int32(np.rint((value - start) * inverse)) - least)


@kernel
def codes_of_bands(values, begin, form, kind, columns, rows, width, scales, offsets, firsts, out):
    """Fill `out`, uint8, with the codes of some values.

    Args:
        values: their words.
        begin: the place of the first one in the tensor.
        form, kind, columns, rows, width, scales, offsets: as in `fit_bands`, for the whole tensor.
        firsts: int16, the number that has code 0 (INT), one for each tile or one for all.
        out: the codes.
    """
    across = (columns + width - 1) // width
    place, end = np.int64(0), values.size
    while place < end:
        row, column = (begin + place) // columns, (begin + place) % columns
        tile = row // rows * across + column // width
        stop = min(place + min((column // width + 1) * width, columns) - column, end)
        inverse, offset = inverse_of(scales[tile]), offsets[tile if kind == AFFINE else 0]
        first = np.int64(firsts[tile if firsts.size > 1 else 0])
        if form == _BF16 and kind in (INT, SIGNED, AFFINE):
            _codes_of_bf16(values, place, stop, kind, inverse, offset, first, out)
        elif kind == INT:
            for k in range(place, stop):
                out[k] = np.uint8(np.int64(np.rint(np.float64(value_of(values[k], form)) * inverse)) - first)
        elif kind == AFFINE:
            for k in range(place, stop):
                out[k] = np.uint8(np.int64(np.rint((np.float64(value_of(values[k], form)) - offset) * inverse)))
        else:
            for k in range(place, stop):
                out[k] = np.uint8(code_of(values[k], form, kind, inverse, offset))
        place = stop


@kernel
def from_firsts(codes, begin, columns, rows, width, firsts, out):
    """Fill `out` with codes, modulo 256, as differences from the first number of each tile.

    Args are as in `codes_of_bands`, but codes: whole numbers modulo 256, uint8.
    """
    across = (columns + width - 1) // width
    place, end = np.int64(0), codes.size
    while place < end:
        row, column = (begin + place) // columns, (begin + place) % columns
        first = np.uint8(firsts[row // rows * across + column // width])
        stop = min(place + min((column // width + 1) * width, columns) - column, end)
        for k in range(place, stop):
            out[k] = np.uint8(codes[k] - first)
        place = stop


@kernel
def widen(words, form, out):
    """Fill `out`, float32, with the values of words."""
    for k in range(words.size):
        out[k] = value_of(words[k], form)


@inline
def _rebuild(codes, form, kind, scale, offset, first, levels, out):
    """Fill `out` with the words of the codes of a tile in one row."""
    if kind == INT:
        for k in range(codes.size):
            out[k] = rounded(np.float32(np.float32(np.int32(codes[k]) + np.int32(first)) * scale), form)
    elif kind == AFFINE:
        for k in range(codes.size):
            out[k] = rebuilt(np.float32(codes[k]), scale, offset, True, form)
    else:
        for k in range(codes.size):
            out[k] = rounded(np.float32(levels[codes[k]] * scale), form)


@kernel
def rebuild(codes, begin, form, kind, columns, rows, width, scales, offsets, firsts, levels, out):
    """Fill `out` with the words of codes, of which the first is that of value `begin`.

    levels: float32 [256], the level of each code if there are no whole numbers. Others are as in `codes_of_bands`.
    """
    across = (columns + width - 1) // width
    row, column = begin // columns, begin % columns
    band, inside, left = row // rows * across, row % rows, column // width
    place, end = np.int64(0), codes.size
    while place < end:
        tile = band + left
        stop = min(place + min((left + 1) * width, columns) - column, end)
        scale, offset = scales[tile], offsets[tile if kind == AFFINE else 0]
        first = firsts[tile if firsts.size > 1 else 0]
        here, words = codes[place:stop], out[place:stop]
        if form == _BF16:  # a loop of its own
            _rebuild(here, _BF16, kind, scale, offset, first, levels, words)
        else:
            _rebuild(here, form, kind, scale, offset, first, levels, words)
        column, left, place = column + stop - place, left + 1, stop
        if column == columns:
            column, left, inside = 0, 0, inside + 1
            if inside == rows:
                band, inside = band + across, 0
