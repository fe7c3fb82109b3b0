"""Finding the scale of each tile of a matrix of values that are levels times one scale, and the code of each value.

Short groups in a row are fitted as they are, if they are like the group before (grid_groups.py, grid_levelled.py). In
every other tile, only the distinct values are fitted (grid_search.py).
"""

import numpy as np

from squeeze.numerics.jit import inline, kernel, part
from squeeze.packing.tensors.distinct import SLOTS, add, clear, mark
from squeeze.packing.tensors.float_payload import Array
from squeeze.packing.tensors.grid_codes import code_of, inverse_of
from squeeze.packing.tensors.grid_groups import MOST_GROUP, fit_group
from squeeze.packing.tensors.grid_levelled import fit_exact, fit_named
from squeeze.packing.tensors.grid_levels import AFFINE, FP4, INT, NF4, SIGNED
from squeeze.packing.tensors.grid_search import fit_affine, fit_scale, measure

__all__ = ["MOST_DISTINCT", "Space", "fit_bands", "fit_kinds"]

MOST_DISTINCT = 512
_FEW = 64  # values of a tile that are fitted as they are
_BF16, _F32 = 0, 2


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
                if count < 0 or not measure(words, places, count, form):
                    return False
                found[1] = 0
                if kind == AFFINE:
                    if not fit_affine(words, places, count, form, found, hint):
                        return False
                else:
                    found[0] = fit_scale(words, places, count, form, kind, hint)
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
