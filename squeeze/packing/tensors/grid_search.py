"""Finding the scale of the distinct values of a tile: every level is tried that the largest value could be.

Each value bounds the scale to an interval. The roundest number in all of them is the scale, if every value is rebuilt
from it to the same bits. Floating point here affects the choice of a scale alone: what was found is checked by the
arithmetic of the decoder (grid_levels.py).
"""

import numpy as np

from squeeze.numerics.jit import inline, part
from squeeze.packing.tensors.grid_codes import code_of, inverse_of, place_of
from squeeze.packing.tensors.grid_groups import HALF, is_half, step_of_half
from squeeze.packing.tensors.grid_levels import AFFINE, COUNTS, INT, SIGNED, TABLES, rebuilt, value_of
from squeeze.packing.tensors.grid_scales import MANTISSAS, TRIALS, trial

__all__ = ["fit_affine", "fit_scale", "measure"]

_MOST_AFFINE = 32  # levels with an offset
_SLACK = 2.0**-24  # relative: products are rounded to float32 before they are rounded to their type
_BF16, _F16 = 0, 1


@inline
def _as_float(bits):
    return np.float64(np.int32(bits).view(np.float32))


@inline
def measure(words, places, count, form):
    """Fill values and bounds; return whether all are finite. Bounds are those of the magnitude.

    Args:
        words: distinct words, uint32 [count] or more.
        places: filled with their values, and the least and the greatest number that is rounded to each, float64 [3,
            count] or more.
        count: the number of words.
        form: their type, see FORMS.
    """
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
def fit_scale(words, places, count, form, kind, hint):
    """Return the scale of some words, or -1. The order of words changes.

    Args:
        words, places, count, form: as in `measure`.
        kind: the levels, but AFFINE.
        hint: the level of the largest value of the tile before, int64 [1]; replaced by that of these words.
    """
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
def fit_affine(words, places, count, form, found, hint):
    """Find scale and offset of some words; return whether there are any.

    Args:
        words, places, count, form: as in `measure`; bounds of values replace those of magnitudes.
        found: filled with scale and offset, float32 [2].
        hint: as in `fit_scale`, of the largest value above the offset.
    """
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
