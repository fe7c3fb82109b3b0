"""Finding the scale of short groups of bf16 values in a row, most of which have the same largest level as the group
before.

The steps are those of grid_fit.py for that level alone, all values at once: loops without branches, which compile to
vectors. Bounds are float32, so they are wider by some roundings; what is found is checked as grid_codes.py computes
codes, in float64. Maxima of positive numbers are those of their bits, as integers, whose order compilers may change. A
group that this finds no scale for is left to grid_fit.py.
"""

import numpy as np

from squeeze.numerics.jit import inline, part
from squeeze.packing.tensors.grid_levels import AFFINE, SIGNED
from squeeze.packing.tensors.grid_scales import MANTISSAS, TRIALS, trial

__all__ = ["HALF", "MOST_GROUP", "fit_group", "is_half", "step_of_half"]

HALF = 11  # bits of a mantissa of float16
MOST_GROUP = 4096  # values of a group
_COMMON = 32  # values of a group
_SURE = 32  # whole numbers up to this are rounded right by the first estimate of a scale
_WIDER, _NARROWER = np.float32(1 + 2.0**-21), np.float32(1 - 2.0**-21)
_HUGE = np.int32(0x7F7FFFFF)  # the bits of a number that is no bound
_SIGN, _MAGNITUDE, _HALF_STEP = np.int32(-0x80000000), np.int32(0x7FFFFFFF), np.int32(0x8000)
_INFINITE = np.int32(0x7F000000)  # bits of numbers that are left to grid_fit.py


@inline
def step_of_half(magnitude):
    """Return the distance of neighbouring numbers of float16 at a magnitude."""
    exponent = np.float64(max(magnitude, 2.0**-14)).view(np.int64) >> 52
    return np.int64((exponent - 10) << 52).view(np.float64)


@inline
def is_half(value):
    """Return whether a number is one of float16, but for its range."""
    steps = value / step_of_half(abs(value))
    return np.rint(steps) == steps


@inline
def _bits_of(word):
    """Return the bits of a bf16 as those of a float32."""
    return np.int32(np.uint32(word) << np.uint32(16))


@inline
def _least_of(magnitude):
    """Return the least number that is rounded to a magnitude, given as bits."""
    return np.int32(max(magnitude - _HALF_STEP, np.int32(0))).view(np.float32)


@inline
def _most_of(magnitude):
    """Return the greatest number that is rounded to a magnitude, given as bits."""
    return np.int32(magnitude + _HALF_STEP).view(np.float32)


@inline
def _rounded(value):
    """Return the bits of a float32 that is rounded to bf16, as those of a float32."""
    bits = np.uint32(np.float32(value).view(np.int32))
    up = np.uint32(np.uint32(0x7FFF) + (np.uint32(bits >> np.uint32(16)) & np.uint32(1)))
    return np.int32(np.uint32(bits + up) & np.uint32(0xFFFF0000))


@part
def _narrow(places, width, offset, low, high, most):
    """Do as `_narrowed`, which is compiled without a loop for the commonest width."""
    if width == _COMMON:
        return _narrowed(places, _COMMON, offset, low, high, most)
    return _narrowed(places, width, offset, low, high, most)


@inline
def _narrowed(places, width, offset, low, high, most):
    """Return the scales between low and high at which all values up to level `most` are rounded levels."""
    inverse, start, last = np.float32(2 / (low + high)), np.float32(offset), np.float32(most)
    lowest, highest = np.float32(low).view(np.int32), np.float32(high).view(np.int32)
    for k in range(width):
        at = np.float32(np.rint(np.float32(places[0, k] - start) * inverse))
        each, counts = np.float32(1) / at, at >= np.float32(1) and at <= last
        one = np.float32(np.float32(np.float32(places[1, k] - start) * each) * _NARROWER).view(np.int32)
        other = np.float32(np.float32(np.float32(places[2, k] - start) * each) * _WIDER).view(np.int32)
        lowest = np.int32(max(lowest, one if counts else np.int32(0)))
        highest = np.int32(min(highest, other if counts else _HUGE))
    return np.float64(np.int32(lowest).view(np.float32)), np.float64(np.int32(highest).view(np.float32))


@part
def _is_rebuilt(words, places, width, kind, scale, offset):
    """Do as `_rebuilds`, which is compiled without a loop for the commonest width."""
    if width == _COMMON:
        return _rebuilds(words, places, _COMMON, kind, scale, offset)
    return _rebuilds(words, places, width, kind, scale, offset)


@inline
def _rebuilds(words, places, width, kind, scale, offset):
    """Return whether all values are levels times a scale, plus an offset."""
    inverse, wrong, most = 1.0 / np.float64(scale), np.int32(0), 127.0 if kind == SIGNED else 255.0
    start = np.float32(offset)
    for k in range(width):
        at = np.rint((np.float64(places[0, k]) - offset) * inverse)
        product = np.float32(np.float32(at) * scale)
        if kind == AFFINE:
            wrong |= np.int32(_rounded(np.float32(product + start)) ^ _bits_of(words[k]))
        else:
            wrong |= np.int32(_rounded(product) ^ (_bits_of(words[k]) & _MAGNITUDE))
        wrong |= np.int32(at > most) | np.int32(at < 0)
    return wrong == 0


@part
def _roundest(low, high, words, places, width, kind, offset, most_bits):
    """Return the scale from low to high with the fewest bits that rebuilds all words, or -1, as grid_fit.py does."""
    for bits in MANTISSAS:
        if bits > most_bits:
            break
        for number in range(TRIALS):
            scale = trial(low, high, bits, number)
            if scale > 0 and _is_rebuilt(words, places, width, kind, np.float32(scale), offset):
                return scale
    return -1.0


@part
def _fit_magnitudes(values, start, width, kind, hint, words, places, found):
    largest, zeros = np.int32(0), np.int32(0)
    for k in range(width):
        words[k] = values[start + k]
        bits = _bits_of(values[start + k])
        magnitude = np.int32(bits & _MAGNITUDE)
        largest = np.int32(max(largest, magnitude))
        zeros |= np.int32(bits == _SIGN)
        places[0, k] = np.int32(magnitude).view(np.float32)
        places[1, k], places[2, k] = _least_of(magnitude), _most_of(magnitude)
    if largest == 0 or largest >= _INFINITE or (zeros and kind != SIGNED):
        return False
    level = np.float64(hint[0])
    low, high = np.float64(_least_of(largest)) / level, np.float64(_most_of(largest)) / level
    if level > _SURE:
        low, high = _narrow(places, width, 0.0, low, high, _SURE)
    if low <= high:
        low, high = _narrow(places, width, 0.0, low, high, 255)
    found[0], found[1] = 0, 0
    if low <= high:
        found[0] = _roundest(low, high, words, places, width, kind, 0.0, 24)
    return found[0] > 0


@inline
def _bounds_of(order):
    """Return the numbers that are rounded to a value, given as its magnitude's bits with its sign, as (low, high)."""
    least, most = np.float64(_least_of(np.int32(abs(order)))), np.float64(_most_of(np.int32(abs(order))))
    return (least, most) if order > 0 else (-most, -least)


@inline
def _load(values, start, width, words, places):
    """Load values with their bounds; return the least and the greatest, as `_bounds_of` takes them."""
    smallest, largest = _MAGNITUDE, np.int32(-_MAGNITUDE)
    for k in range(width):
        words[k] = values[start + k]
        bits = _bits_of(values[start + k])
        magnitude, negative = np.int32(bits & _MAGNITUDE), bits < 0
        order = np.int32(-magnitude if negative else magnitude)
        smallest, largest = np.int32(min(smallest, order)), np.int32(max(largest, order))
        least, most = _least_of(magnitude), _most_of(magnitude)
        places[0, k] = np.int32(bits).view(np.float32)
        places[1, k], places[2, k] = np.float32(-most if negative else least), np.float32(-least if negative else most)
    return smallest, largest


@part
def _fit_affine(values, start, width, hint, words, places, found):
    if width == _COMMON:
        smallest, largest = _load(values, start, _COMMON, words, places)
    else:
        smallest, largest = _load(values, start, width, words, places)
    if smallest == largest or largest >= _INFINITE or smallest <= -_INFINITE:
        return False
    low, high = _bounds_of(smallest)
    least, most = _bounds_of(largest)
    unit, steps = step_of_half(min(abs(low), abs(high))), np.float64(hint[0])
    first = np.ceil(low / unit) * unit
    for most_bits in (HALF, 24):  # scales of float16 cost half of others, and are those of GGUF
        offset = first
        while offset <= high:
            one, other = (least - offset) / steps, (most - offset) / steps
            if one > 0 and (most_bits > HALF or is_half(offset)):
                one, other = _narrow(places, width, offset, one, other, 255)
                if one <= other:
                    scale = _roundest(one, other, words, places, width, AFFINE, offset, most_bits)
                    if scale > 0:
                        found[0], found[1] = scale, offset
                        return True
            offset += unit
    return False


@inline
def fit_group(values, start, width, kind, hint, words, places, found):
    """Find the scale, and the offset, of a group whose largest value is the level `hint`; return whether there is one.

    Args:
        values: words of bf16.
        start: the first one of the group.
        width: words of the group, up to `MOST_GROUP`.
        kind: INT, SIGNED or AFFINE.
        hint: the level, int64 [1], above 0.
        words: working space, uint32 [width].
        places: working space, float32 [3, width].
        found: filled with scale and offset, float32 [2].
    """
    if kind == AFFINE:
        return _fit_affine(values, start, width, hint, words, places, found)
    return _fit_magnitudes(values, start, width, kind, hint, words, places, found)
