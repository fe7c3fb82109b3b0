"""Finding the scale of short groups in a row whose largest value is a known level: those of tables, and of float32.

In NF4 and FP4 the largest value of a group is nearly always the last level. Then a table has the nearest level of each
magnitude, and bounds and checks are those of 32 words, one for each code, instead of the group's. A float32 leaves few
scales to try. A group that this finds no scale for is left to grid_search.py, and what is found is checked by the
arithmetic of the decoder.
"""

import numpy as np

from squeeze.numerics.jit import inline, part
from squeeze.packing.tensors.grid_levels import COUNTS, FP4, NF4, SIGNED, TABLES, rounded
from squeeze.packing.tensors.grid_scales import MANTISSAS, TRIALS, trial

__all__ = ["fit_exact", "fit_named"]

_BINS = 128  # of magnitudes up to the last level
_CODES, _SIDE = 32, 16  # codes of a table, and the first one of negative values
_EMPTY = np.uint32(0x10000)  # no word of bf16
_SLACK = 2.0**-20  # relative
_HUGE = np.int32(0x7F7FFFFF)
_LEAST, _MOST = np.uint32(0x0800), np.uint32(0x7F00)  # words between which magnitudes and their inverses are finite


def _named(kind: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the level of each code, float32 [32], and the code nearest to each magnitude of both signs, uint8."""
    levels, nearest = np.zeros(_CODES, np.float32), np.zeros((2, _BINS + 2), np.uint8)
    for side in range(2):
        magnitudes = TABLES[kind, side, : COUNTS[kind, side]]
        levels[side * _SIDE :][: magnitudes.size] = -magnitudes if side else magnitudes
        places = np.arange(_BINS + 2) / _BINS * magnitudes[-1]
        nearest[side] = np.abs(places[:, None] - magnitudes).argmin(1) + side * _SIDE
    return levels, nearest


_LEVELS, _NEAREST = (np.stack(arrays) for arrays in zip(_named(FP4), _named(NF4), strict=True))
with np.errstate(divide="ignore"):
    _INVERSES = np.where(_LEVELS == 0, np.float32(0), 1 / np.abs(_LEVELS)).astype(np.float32)


@inline
def _float_of(magnitude):
    """Return the float32 whose upper half is given."""
    return np.int32(np.uint32(magnitude) << np.uint32(16)).view(np.float32)


@inline
def _name(values, width, table, factor, words, codes):
    """Fill `codes` with the code nearest to each value, and `words` with the last word of each code."""
    for code in range(_CODES):
        words[code] = _EMPTY
    for k in range(width):
        word = np.uint32(values[k])
        side = np.uint32(word >> np.uint32(15))
        place = np.int32(_float_of(word & np.uint32(0x7FFF)) * factor + np.float32(0.5))
        code = _NEAREST[table, side, min(place, np.int32(_BINS))]
        words[code], codes[k] = word, code


@inline
def _bounded(table, words):
    """Return the scales at which all words are rounded levels, as (low, high)."""
    low, high = np.int32(0), _HUGE
    for code in range(_CODES):
        magnitude, inverse = np.int32(words[code] & np.uint32(0x7FFF)), _INVERSES[table, code]
        counts = words[code] != _EMPTY and inverse > 0 and magnitude > 0
        bits = np.int32(magnitude << np.int32(16))
        one = np.float32(np.int32(bits - np.int32(0x8000)).view(np.float32) * inverse).view(np.int32)
        other = np.float32(np.int32(bits + np.int32(0x8000)).view(np.float32) * inverse).view(np.int32)
        low = np.int32(max(low, one if counts else np.int32(0)))
        high = np.int32(min(high, other if counts else _HUGE))
    least, most = np.int32(low).view(np.float32), np.int32(high).view(np.float32)
    return np.float64(least) * (1 - _SLACK), np.float64(most) * (1 + _SLACK)


@inline
def _is_rebuilt(table, words, scale):
    wrong = np.uint32(0)
    for code in range(_CODES):
        word = rounded(np.float32(_LEVELS[table, code] * scale), 0)
        wrong = np.uint32(wrong | (np.uint32(word ^ words[code]) if words[code] != _EMPTY else np.uint32(0)))
    return wrong == np.uint32(0)


@part
def fit_named(values, width, kind, words, found, codes):
    """Find the scale of a group of bf16 values whose largest magnitude is the last level; return whether there is one.

    Args:
        values: words of bf16.
        width: words of the group.
        kind: NF4 or FP4.
        words: working space, uint32 [32].
        found: filled with scale and no offset, float32 [2].
        codes: filled with the codes of the group, uint8.
    """
    largest = np.uint32(0)
    for k in range(width):
        largest = max(largest, np.uint32(np.uint32(values[k]) & np.uint32(0x7FFF)))
    if largest < _LEAST or largest >= _MOST:
        return False
    table = 1 if kind == NF4 else 0
    _name(values, width, table, np.float32(_BINS) / _float_of(largest), words, codes)
    low, high = _bounded(table, words)
    if low > high:
        return False
    scale = -1.0
    for bits in MANTISSAS:
        for number in range(TRIALS):
            if scale < 0:
                tried = trial(low, high, bits, number)
                scale = tried if tried > 0 and _is_rebuilt(table, words, np.float32(tried)) else -1.0
    wrong = np.uint32(scale < 0)
    for k in range(width):
        code = np.uint32(codes[k])
        wrong = np.uint32(wrong | np.uint32(words[code] ^ np.uint32(values[k])))
        side = np.uint32(code >> np.uint32(4))
        codes[k] = np.uint8(np.uint32(code & np.uint32(15)) | np.uint32(side << np.uint32(7)))
    found[0], found[1] = scale, 0
    return wrong == np.uint32(0)


@part
def fit_exact(values, width, kind, hint, found, codes):
    """Find the scale of a group of float32 values whose largest magnitude is the level `hint`; return whether there is
    one.

    Args are as in `fit_named`, but kind: INT or SIGNED; hint: the level, int64 [1], above 0.
    """
    largest, zeros = np.uint32(0), np.int32(0)
    for k in range(width):
        bits = np.uint32(values[k])
        largest = max(largest, np.uint32(bits & np.uint32(0x7FFFFFFF)))
        zeros = np.int32(zeros | np.int32(bits == np.uint32(0x80000000)))
    if largest == np.uint32(0) or largest >= np.uint32(0x7F000000) or (zeros and kind != SIGNED):
        return False
    estimate = np.float64(np.int32(largest).view(np.float32)) / np.float64(hint[0])
    low, high = estimate * (1 - 2.0**-23), estimate * (1 + 2.0**-23)
    for bits in MANTISSAS:
        for number in range(TRIALS):
            scale = trial(low, high, bits, number)
            if scale > 0 and _takes(values, width, kind, np.float32(scale), codes):
                found[0], found[1] = scale, 0
                return True
    return False


@inline
def _takes(values, width, kind, scale, codes):
    """Write codes; return whether all values are rebuilt from them."""
    inverse, wrong, most = np.float32(1.0 / np.float64(scale)), np.int32(0), np.float32(127 if kind == SIGNED else 255)
    for k in range(width):
        bits = np.int32(np.uint32(values[k]))
        magnitude = np.int32(bits & np.int32(0x7FFFFFFF))
        at = np.float32(np.rint(np.float32(magnitude.view(np.float32) * inverse)))
        other = np.int32(np.float32(at * scale).view(np.int32) ^ magnitude)
        wrong = np.int32(wrong | np.int32(other | np.int32(at > most)))
        whole, negative = np.int32(at), bits < 0
        if kind == SIGNED:
            codes[k] = np.uint8(whole | np.int32(np.int32(negative) << np.int32(7)))
        else:
            codes[k] = np.uint8(np.int32(-whole if negative else whole))
    return wrong == 0
