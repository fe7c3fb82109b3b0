"""Finding the scale of short groups of bf16 values in a row, most of which have the same largest level as the group
before.

The steps are those of grid_search.py for that level alone, all values at once: loops without branches, which compile to
vectors. Bounds are float32, so they are wider by some roundings; what is found is checked by the arithmetic of the
decoder. Maxima of positive numbers are those of their bits, as integers, whose order compilers may change. A
group that this finds no scale for is left to grid_search.py.
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
_FIRST = 128  # values that narrow the scale before whole numbers above that are told apart
_NO_BOUND = np.float32(2.0**120)
_INFINITE = np.int32(0x7F000000)  # bits of numbers that are left to grid_search.py


@inline
def step_of_half(magnitude):
    """Return the distance of neighbouring numbers of float16 at a magnitude."""
    exponent = np.float64(max(magnitude, 2.0**-14)).view(np.int64) >> 52
    return np.int64((exponent - 10) << 52).view(np.float64)


@inline
def is_half(value):
    """Return whether a number is one of float16, but for its range."""
    exponent = np.float64(max(abs(value), 2.0**-14)).view(np.int64) >> 52
    steps = value * np.int64((2056 - exponent) << 52).view(np.float64)
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
def _narrow(places, width, low, high, most):
    """Do as `_narrowed`, which is compiled without a loop for the commonest width."""
    if width == _COMMON:
        return _narrowed(places, _COMMON, low, high, most)
    return _narrowed(places, width, low, high, most)


@inline
def _narrowed(places, width, low, high, most):
    """Return the scales between low and high at which all values up to level `most` are rounded levels."""
    inverse, last = np.float32(2 / (low + high)), np.float32(most)
    lowest, highest = np.float32(low).view(np.int32), np.float32(high).view(np.int32)
    for k in range(width):
        at = np.float32(np.rint(np.float32(places[0, k] * inverse)))
        each, counts = np.float32(1) / at, at >= np.float32(1) and at <= last
        one = np.float32(np.float32(places[1, k] * each) * _NARROWER).view(np.int32)
        other = np.float32(np.float32(places[2, k] * each) * _WIDER).view(np.int32)
        lowest = np.int32(max(lowest, one if counts else np.int32(0)))
        highest = np.int32(min(highest, other if counts else _HUGE))
    return np.float64(np.int32(lowest).view(np.float32)), np.float64(np.int32(highest).view(np.float32))


@part
def _is_rebuilt(values, places, width, kind, scale):
    """Do as `_rebuilds`, which is compiled without a loop for the commonest width."""
    if width == _COMMON:
        return _rebuilds(values, places, _COMMON, kind, scale)
    return _rebuilds(values, places, width, kind, scale)


@inline
def _rebuilds(values, places, width, kind, scale):
    """Return whether all magnitudes are levels times a scale."""
    inverse, wrong, most = np.float32(1.0 / np.float64(scale)), np.int32(0), np.float32(127 if kind == SIGNED else 255)
    for k in range(width):
        at = np.float32(np.rint(np.float32(places[0, k] * inverse)))
        wrong = np.int32(wrong | np.int32(_rounded(np.float32(at * scale)) ^ (_bits_of(values[k]) & _MAGNITUDE)))
        wrong = np.int32(wrong | np.int32(at > most))
    return wrong == 0


@part
def _roundest(low, high, values, places, width, kind):
    """Return the scale from low to high with the fewest bits that rebuilds all words, or -1, as grid_search.py does."""
    for bits in MANTISSAS:
        for number in range(TRIALS):
            scale = trial(low, high, bits, number)
            if scale > 0 and _is_rebuilt(values, places, width, kind, np.float32(scale)):
                return scale
    return -1.0


@inline
def _write_codes(values, width, kind, scale, codes):
    """Write the codes of bf16, as grid_codes.py has them, for magnitudes that are levels times a scale."""
    inverse = np.float32(1.0 / np.float64(scale))
    for k in range(width):
        bits = _bits_of(values[k])
        at = np.int32(np.rint(np.float32(np.int32(bits & _MAGNITUDE).view(np.float32) * inverse)))
        if kind == SIGNED:
            codes[k] = np.uint8(at | np.int32(np.int32(bits < 0) << np.int32(7)))
        else:
            codes[k] = np.uint8(np.int32(-at if bits < 0 else at))


@part
def _fit_magnitudes(values, width, kind, hint, places, found, codes):
    largest, zeros = np.int32(0), np.int32(0)
    for k in range(width):
        bits = _bits_of(values[k])
        magnitude = np.int32(bits & _MAGNITUDE)
        largest = np.int32(max(largest, magnitude))
        zeros = np.int32(zeros | np.int32(bits == _SIGN))
        places[0, k] = np.int32(magnitude).view(np.float32)
        places[1, k], places[2, k] = _least_of(magnitude), _most_of(magnitude)
    if largest == 0 or largest >= _INFINITE or (zeros and kind != SIGNED):
        return False
    level = np.float64(hint[0])
    low, high = np.float64(_least_of(largest)) / level, np.float64(_most_of(largest)) / level
    if level > _SURE:
        low, high = _narrow(places, min(width, _FIRST), low, high, _SURE)
    if low <= high:
        low, high = _narrow(places, width, low, high, 255)
    found[0], found[1] = 0, 0
    if low <= high:
        found[0] = _roundest(low, high, values, places, width, kind)
    if found[0] > 0:
        _write_codes(values, width, kind, found[0], codes)
    return found[0] > 0


@inline
def _bounds_of(order):
    """Return the numbers that are rounded to a value, given as its magnitude's bits with its sign, as (low, high)."""
    least, most = np.float64(_least_of(np.int32(abs(order)))), np.float64(_most_of(np.int32(abs(order))))
    return (least, most) if order > 0 else (-most, -least)


@inline
def _load(values, width, places):
    """Load values with their bounds; return the least and the greatest, as `_bounds_of` takes them."""
    smallest, largest = _MAGNITUDE, np.int32(-_MAGNITUDE)
    for k in range(width):
        bits = _bits_of(values[k])
        magnitude, negative = np.int32(bits & _MAGNITUDE), bits < 0
        order = np.int32(-magnitude if negative else magnitude)
        smallest, largest = np.int32(min(smallest, order)), np.int32(max(largest, order))
        least, most = _least_of(magnitude), _most_of(magnitude)
        places[0, k] = np.int32(bits).view(np.float32)
        places[1, k], places[2, k] = np.float32(-most if negative else least), np.float32(-least if negative else most)
    return smallest, largest


@inline
def _count_steps(places, width, smallest, unit):
    """Replace values by the whole number nearest to each, in units above the smallest, and add its inverse.

    Those of 0, which tell nothing of the scale, get what makes their bounds hold for any.
    """
    inverse, start = np.float32(1 / unit), np.float32(smallest)
    for k in range(width):
        at = np.float32(np.rint(np.float32(np.float32(places[0, k] - start) * inverse)))
        is_some = at >= np.float32(1)
        places[0, k], places[3, k] = at, np.float32(1) / at if is_some else np.float32(0)
        places[4, k] = np.float32(0) if is_some else _NO_BOUND


@inline
def _between(places, width, offset):
    """Return the scales at which all values are rounded to those given, above an offset, as (low, high)."""
    lowest, highest, start = np.int32(0), _HUGE, np.float32(offset)
    for k in range(width):
        one = np.float32(np.float32(np.float32(places[1, k] - start) * places[3, k]) * _NARROWER).view(np.int32)
        other = np.float32(np.float32(np.float32(places[2, k] - start) * places[3, k]) * _WIDER)
        other = np.float32(other + places[4, k]).view(np.int32)
        lowest, highest = np.int32(max(lowest, one)), np.int32(min(highest, other))
    return np.float64(np.int32(lowest).view(np.float32)), np.float64(np.int32(highest).view(np.float32))


@inline
def _roundest_above(low, high, values, places, width, offset, most_bits):
    """Return the scale from low to high with the fewest bits that rebuilds all words above an offset, or -1."""
    above = np.float32(offset)
    for bits in MANTISSAS:
        if bits > most_bits:
            break
        for number in range(TRIALS):
            scale, wrong = trial(low, high, bits, number), np.int32(0)
            if scale > 0:
                factor = np.float32(scale)
                for k in range(width):
                    product = np.float32(places[0, k] * factor)
                    wrong = np.int32(wrong | np.int32(_rounded(np.float32(product + above)) ^ _bits_of(values[k])))
                if wrong == 0:
                    return scale
    return -1.0


@inline
def _search_affine(values, width, hint, places, found, codes):
    smallest, largest = _load(values, width, places)
    if smallest == largest or largest >= _INFINITE or smallest <= -_INFINITE:
        return False
    low, high = _bounds_of(smallest)
    unit, middle = step_of_half(min(abs(low), abs(high))), (low + high) / 2
    least, most = _bounds_of(largest)
    _count_steps(places, width, middle, ((least + most) / 2 - middle) / hint[0])
    first = np.ceil(low / unit) * unit
    for most_bits in (HALF, 24):  # scales of float16 cost half of others, and are those of GGUF
        offset = first
        while offset <= high:
            if most_bits > HALF or is_half(offset):
                one, other = _between(places, width, offset)
                if 0 < one <= other:
                    scale = _roundest_above(one, other, values, places, width, offset, most_bits)
                    if scale > 0:
                        found[0], found[1] = scale, offset
                        for k in range(width):
                            codes[k] = np.uint8(np.int32(places[0, k]))
                        return True
            offset += unit
    return False


@part
def _fit_affine(values, width, hint, places, found, codes):
    """Do as `_search_affine`, which is compiled without loops for the commonest width."""
    if width == _COMMON:
        return _search_affine(values, _COMMON, hint, places, found, codes)
    return _search_affine(values, width, hint, places, found, codes)


@inline
def fit_group(values, width, kind, hint, places, found, codes):
    """Find the scale, and the offset, of a group whose largest value is the level `hint`; return whether there is one.

    Args:
        values: words of bf16.
        width: words of the group, up to `MOST_GROUP`.
        kind: INT, SIGNED or AFFINE.
        hint: the level, int64 [1], above 0.
        places: working space, float32 [5, width].
        found: filled with scale and offset, float32 [2].
        codes: filled with the codes of the group, uint8. That of a negative whole
            number is the number modulo 256.
    """
    if kind == AFFINE:
        return _fit_affine(values, width, hint, places, found, codes)
    return _fit_magnitudes(values, width, kind, hint, places, found, codes)
