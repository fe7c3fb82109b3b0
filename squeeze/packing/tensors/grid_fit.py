"""Finding the scale of values that are levels times one scale, for each tile of a matrix.

Each value bounds the scale to an interval. The roundest number in all of them is the scale, if every value is rebuilt
from it to the same bits. Only the distinct values of a large tile are fitted. Floating point here affects the choice of
a scale alone: what was found is checked by the arithmetic of the decoder (grid_levels.py).
"""

import numpy as np

from squeeze.numerics.jit import inline, kernel, part
from squeeze.packing.tensors.distinct import SLOTS, add, clear, mark
from squeeze.packing.tensors.float_payload import Array
from squeeze.packing.tensors.grid_codes import code_of, inverse_of, place_of
from squeeze.packing.tensors.grid_groups import HALF, MOST_GROUP, fit_group, is_half, step_of_half
from squeeze.packing.tensors.grid_levelled import fit_exact, fit_named
from squeeze.packing.tensors.grid_levels import AFFINE, COUNTS, FP4, INT, NF4, SIGNED, TABLES, rebuilt, value_of
from squeeze.packing.tensors.grid_scales import MANTISSAS, TRIALS, trial

__all__ = ["MOST_DISTINCT", "Space", "fit_bands", "fit_kinds"]

MOST_DISTINCT = 512
_FEW = 64  # values of a tile that are fitted as they are
_MOST_AFFINE = 32  # levels with an offset
_SLACK = 2.0**-24  # relative: products are rounded to float32 before they are rounded to their type
_BF16, _F16, _F32 = 0, 1, 2


class Space:
    """Working space of a thread.

    Attributes:
        slots: a set of words.
        words: words of a tile.
        places: their values, and the least and the greatest number that is rounded to each.
        bounds: the same of a group.
        found: scale and offset.
        hint: the level of the largest value of the tile before, and the number of this tile.
        marks: for each word of 16 bits, the last tile that it is in.
        table: its code.
    """

    def __init__(self) -> None:
        self.slots, self.words = np.zeros(SLOTS, np.int64), np.empty(max(MOST_DISTINCT, MOST_GROUP), np.uint32)
        self.places, self.bounds = np.empty((3, MOST_DISTINCT)), np.empty((5, MOST_GROUP), np.float32)
        self.found, self.hint = np.empty(2, np.float32), np.zeros(2, np.int64)
        self.marks, self.table = np.zeros(1 << 16, np.int64), np.empty(1 << 16, np.uint8)

    @property
    def arrays(self) -> tuple[Array, ...]:
        self.hint[0] = 0
        return self.slots, self.words, self.places, self.bounds, self.found, self.hint, self.marks, self.table


@inline
def _as_float(bits):
    return np.float64(np.int32(bits).view(np.float32))


@inline
def _measure(words, places, count, form):
    """Fill values and bounds; return whether all are finite. Bounds are those of the magnitude."""
    values, lows, highs = places[0], places[1], places[2]
    for k in range(count):
        value = np.float64(value_of(words[k], form))
        if not np.isfinite(value):
            return False
        magnitude, values[k] = abs(value), value
        if form == _BF16:
            bits = np.int64(words[k] & np.uint32(0x7FFF)) << 16
            lows[k], highs[k] = _as_float(bits - 0x8000 if bits else 0), _as_float(bits + 0x8000)
        elif form == _F16:
            step = 2.0**-25
            if magnitude > 2.0**-14:
                bits = np.int64(np.float32(magnitude).view(np.int32))
                lows[k], highs[k] = _as_float(bits - 0x1000), _as_float(bits + 0x1000)
            else:
                lows[k], highs[k] = magnitude - step, magnitude + step
        else:
            lows[k], highs[k] = magnitude * (1 - _SLACK), magnitude * (1 + _SLACK)
    return True


@part
def _sort(words, places, count):
    """Sort words by the magnitude of their values."""
    gap = 1
    while 3 * gap + 1 < count:
        gap = 3 * gap + 1
    while gap > 0:
        for k in range(gap, count):
            word, value, low, high, place = words[k], places[0, k], places[1, k], places[2, k], k
            while place >= gap and abs(places[0, place - gap]) > abs(value):
                words[place] = words[place - gap]
                for row in range(3):
                    places[row, place] = places[row, place - gap]
                place -= gap
            words[place], places[0, place], places[1, place], places[2, place] = word, value, low, high
        gap //= 3


@part
def _is_rebuilt(words, count, form, kind, scale, offset):
    """Return whether all words are levels times a scale."""
    inverse = inverse_of(scale)
    for k in range(count):
        code = code_of(words[k], form, kind, inverse, offset)
        if kind in (INT, AFFINE):
            if abs(code) > 255 or (kind == AFFINE and code < 0):
                return False
            level = np.float32(code)
        else:
            level = TABLES[kind, code >> 7, code & 127]
            level = -level if code >> 7 else level
        if rebuilt(level, scale, offset, kind == AFFINE, form) != words[k]:
            return False
    return True


@part
def _roundest(low, high, words, count, form, kind, offset, most_bits):
    """Return the scale from low to high with the fewest bits, up to `most_bits`, that rebuilds all words, or -1."""
    for bits in MANTISSAS:
        if bits > most_bits:
            break
        for number in range(TRIALS):
            scale = trial(low, high, bits, number)
            if scale > 0 and _is_rebuilt(words, count, form, kind, np.float32(scale), offset):
                return scale
    return -1.0


@inline
def _narrowed(low, high, places, last, form, kind):
    """Return the scales between low and high at which all values are rounded levels, as (low, high); low > high if none
    are.
    """
    for k in range(last):
        value = places[0, k]
        if value == 0:
            continue
        magnitude, side = abs(value), 1 if value < 0 else 0
        place = place_of(2 * magnitude / (low + high), kind, side)
        if place == 0 or place >= COUNTS[kind, side]:
            return 1.0, 0.0
        inverse = 1.0 / np.float64(TABLES[kind, side, place])
        low = max(low, places[1, k] * inverse * (1 - _SLACK))
        high = min(high, places[2, k] * inverse * (1 + _SLACK))
        if low > high:
            break
    return low, high


@part
def _try_place(words, places, count, form, kind, place):
    """Return the scale with which the last value, the largest, is the level at `place`, or -1."""
    last = count - 1
    level = np.float64(TABLES[kind, 1 if places[0, last] < 0 else 0, place])
    low, high = places[1, last] / level * (1 - _SLACK), places[2, last] / level * (1 + _SLACK)
    low, high = _narrowed(low, high, places, last, form, kind)
    return _roundest(low, high, words, count, form, kind, np.float32(0), 24) if low <= high else -1.0


@part
def _fit_scale(words, places, count, form, kind, hint):
    """Return the scale of some words, or -1. The order of words changes."""
    largest, is_fine = 0, kind in (INT, SIGNED)
    for k in range(count):
        largest = k if abs(places[0, k]) > abs(places[0, largest]) else largest
    if places[0, largest] == 0:
        return 0.0 if _is_rebuilt(words, count, form, kind, np.float32(0), np.float32(0)) else -1.0
    last = count - 1
    words[largest], words[last] = words[last], words[largest]
    for row in range(3):
        places[row, largest], places[row, last] = places[row, last], places[row, largest]
    most = COUNTS[kind, 1 if places[0, last] < 0 else 0] - 1
    if 0 < hint[0] <= most:
        scale = _try_place(words, places, count, form, kind, hint[0])
        if scale > 0:
            return scale
    for attempt in range(2 if is_fine else 1):
        if attempt:  # large whole numbers are ambiguous until small ones have narrowed the scale
            _sort(words, places, count)
        for step in range(32 if attempt else 0, most):
            place = step + 1 if is_fine else most - step
            scale = _try_place(words, places, count, form, kind, place)
            if scale > 0:
                hint[0] = place
                return scale
    return -1.0


@part
def _try_affine(words, places, count, form, most, least, steps, offset, most_bits):
    """Return the scale with which the value `most` is whole number `steps` of a tile, above its offset, or -1.

    Bounds are those of values, not of magnitudes. most_bits: those of the scale.
    """
    low, high = (places[1, most] - offset) / steps, (places[2, most] - offset) / steps
    if not low > 0:
        return -1.0
    smallest = places[0, least]
    for k in range(count):
        value = places[0, k]
        if value == smallest:
            continue
        at = np.rint(2 * (value - offset) / (low + high))
        if at < 1:
            return -1.0
        each = 1.0 / at
        low = max(low, (places[1, k] - offset) * each * (1 - _SLACK))
        high = min(high, (places[2, k] - offset) * each * (1 + _SLACK))
        if low > high:
            return -1.0
    return _roundest(low, high, words, count, form, AFFINE, np.float32(offset), most_bits)


@part
def _fit_affine(words, places, count, form, found, hint):
    """Find scale and offset of some words; return whether there are any."""
    least, most = 0, 0
    for k in range(count):
        least = k if places[0, k] < places[0, least] else least
        most = k if places[0, k] > places[0, most] else most
        if not places[0, k] > 0:  # bounds of the value from those of its magnitude
            places[1, k], places[2, k] = -places[2, k], -places[1, k]
    value, low, high = places[0, least], places[1, least], places[2, least]
    unit = step_of_half(min(abs(low), abs(high)))
    first = np.ceil(low / unit) * unit
    for most_bits in (HALF, 24):
        offset = first
        while offset <= high:
            found[0], found[1] = 0, offset
            if most_bits == HALF and not is_half(offset):
                pass
            elif places[0, most] == value:
                if _is_rebuilt(words, count, form, AFFINE, found[0], found[1]):
                    return True
            else:
                for steps in range(_MOST_AFFINE):  # the first one is that of the group before
                    number = steps if steps else hint[0]
                    if number == 0 or (steps and steps == hint[0]):
                        continue
                    scale = _try_affine(words, places, count, form, most, least, number, offset, most_bits)
                    if scale > 0:
                        found[0], hint[0] = scale, number
                        return True
            offset += unit
    return False


@inline
def _load(values, form, start, end, left, width, columns, most, slots, words, hint, marks):
    """Load the distinct words of a tile; return their number, or -1 if there are more than `most`."""
    count = 0
    hint[1] += 1
    for row in range(start, end, columns):
        first, stop = row + left, min(row + min(left + width, columns), end)
        if form == _F32:
            count = add(values, first, stop, count, most, slots, words)
        else:
            count = mark(values, first, stop, count, most, words, hint[1], marks)
        if count < 0:
            for k in range(slots.size):
                slots[k] = 0
            return -1
    if form == _F32:
        clear(slots, words, count)
    return count


@part
def _write_codes(values, form, kind, start, end, left, width, columns, words, count, scale, offset, table, codes):
    """Write the codes of a tile of `count` distinct words."""
    inverse = inverse_of(scale)
    if form != _F32:
        for k in range(count):
            table[words[k]] = np.uint8(code_of(words[k], form, kind, inverse, offset))
    for row in range(start, end, columns):
        stop = min(row + min(left + width, columns), end)
        here, out = values[row + left : stop], codes[row + left : stop]
        for k in range(here.size):
            if form == _F32:
                out[k] = np.uint8(code_of(here[k], form, kind, inverse, offset))
            else:
                out[k] = table[np.uint64(np.uint16(here[k]))]


@inline
def _fit_group(values, form, kind, width, hint, words, bounds, found, codes):
    """Find scale, offset and codes of a group in a row by the quickest way; return whether it found them."""
    if form == _BF16 and kind in (INT, SIGNED, AFFINE):
        return hint[0] > 0 and fit_group(values, width, kind, hint, bounds, found, codes)
    if form == _BF16 and kind in (FP4, NF4):
        return fit_named(values, width, kind, words, found, codes)
    if form == _F32 and kind in (INT, SIGNED):
        return hint[0] > 0 and fit_exact(values, width, kind, hint, found, codes)
    return False


@part
def _extremes(values, form, start, end, left, width, columns, scale):
    """Return the least and the greatest whole number of a tile, which are those of the least and greatest value."""
    sign = np.int32(-0x80000000)
    least, most = np.int32(0x7FFFFFFF), np.int32(-0x7FFFFFFF)
    for row in range(start, end, columns):
        here, up = values[row + left : min(row + min(left + width, columns), end)], np.uint32(0 if form == _F32 else 16)
        for k in range(here.size):
            bits = np.int32(np.uint32(here[k]) << up)
            order = np.int32(np.int32(sign - bits) if bits < 0 else bits)
            least, most = np.int32(min(least, order)), np.int32(max(most, order))
    inverse, shift = inverse_of(scale), 0 if form == _F32 else 16
    low = np.uint32(np.int32(sign - least) if least < 0 else least) >> np.uint32(shift)
    high = np.uint32(np.int32(sign - most) if most < 0 else most) >> np.uint32(shift)
    return code_of(low, form, INT, inverse, 0.0), code_of(high, form, INT, inverse, 0.0)


@part
def _fit_bands(
    values, form, kind, columns, rows, width, scales, offsets, lows, highs, codes, slots, words, places, bounds, found,
    hint, marks, table,
):  # fmt: skip
    """Do as `fit_bands`."""
    band, tile = rows * columns, 0
    most = MOST_DISTINCT if kind != AFFINE else _FEW
    for start in range(0, values.size, band):
        end = min(start + band, values.size)
        for left in range(0, columns, width):
            if start + left >= end:
                break
            size, first = min(width, columns - left), start + left
            is_group = rows == 1 and size <= MOST_GROUP and first + size <= end
            if not is_group or not _fit_group(
                values[first : first + size], form, kind, size, hint, words, bounds, found, codes[first : first + size]
            ):
                count = _load(values, form, start, end, left, width, columns, most, slots, words, hint, marks)
                if count < 0 or not _measure(words, places, count, form):
                    return False
                found[1] = 0
                if kind == AFFINE:
                    if not _fit_affine(words, places, count, form, found, hint):
                        return False
                else:
                    found[0] = _fit_scale(words, places, count, form, kind, hint)
                    if found[0] < 0:
                        return False
                _write_codes(
                    values, form, kind, start, end, left, width, columns, words, count, found[0], found[1], table, codes
                )
            low, high = 0, 0
            if kind == INT:
                low, high = _extremes(values, form, start, end, left, width, columns, found[0])
                if high - low > 255:
                    return False
            scales[tile], offsets[tile], lows[tile], highs[tile] = found[0], found[1], low, high
            tile += 1
    return True


@kernel
def fit_bands(
    values, form, kind, columns, rows, width, scales, offsets, lows, highs, codes, slots, words, places, bounds, found,
    hint, marks, table,
):  # fmt: skip
    """Fit all tiles of whole bands of a matrix; return whether each tile fits.

    Args:
        values: words of the bands, the last of which may have fewer values.
        form: their type, see FORMS.
        kind: the levels.
        columns: values in a row.
        rows: rows of a tile.
        width: columns of a tile.
        scales: filled, float32 [tiles].
        offsets: filled for AFFINE, float32 [tiles].
        lows: filled, the least code of each tile, int16 [tiles].
        highs: filled, the greatest.
        codes: filled, the code of each value, uint8; of a whole number, it modulo 256.
        slots, words, places, bounds, found, hint, marks, table: see `Space`. Slots are zeros before and after.
    """
    return _fit_bands(
        values, form, kind, columns, rows, width, scales, offsets, lows, highs, codes, slots, words, places, bounds,
        found, hint, marks, table,
    )  # fmt: skip


@kernel
def fit_kinds(
    values, form, kinds, widths, fits, scales, offsets, lows, highs, codes, slots, words, places, bounds, found, hint,
    marks, table,
):  # fmt: skip
    """Fill `fits` with whether all tiles of `values` fit, for each of some kinds of levels.

    Args:
        values: words, a number that all widths divide.
        form: their type, see FORMS.
        kinds: the levels, int64.
        widths: values of a tile for each of the kinds, int64.
        fits: filled, uint8, for each of the kinds.
        scales, offsets, lows, highs: working space for each tile.
        codes: working space for each value, uint8.
        slots, words, places, bounds, found, hint, marks, table: see `Space`. Slots are zeros before and after.
    """
    for k in range(kinds.size):
        hint[0] = 0
        fits[k] = _fit_bands(
            values, form, kinds[k], widths[k], 1, widths[k], scales, offsets, lows, highs, codes, slots, words, places,
            bounds, found, hint, marks, table,
        )  # fmt: skip
