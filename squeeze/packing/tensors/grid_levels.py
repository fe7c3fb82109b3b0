"""Grids of values: levels times a scale, rounded to a float type, and the arithmetic that rebuilds a value.

A product is an IEEE multiplication in float32, an offset an IEEE addition in float32, and the result is rounded to
nearest, ties to even. So a value is the same on every machine. docs/format.md specifies it.
"""

import numpy as np

from squeeze.numerics.jit import inline
from squeeze.packing.tensors.float_payload import Array

__all__ = [
    "AFFINE",
    "E4M3",
    "E5M2",
    "FORMS",
    "FP4",
    "INT",
    "KINDS",
    "NF4",
    "PALETTE",
    "SIGNED",
    "TABLES",
    "rebuilt",
    "value_of",
]

# Levels. INT: whole numbers. SIGNED: whole numbers up to 127 and their negatives, -0 included. AFFINE: whole numbers,
# and an offset is added. PALETTE: any 256 values, with no scale.
INT, SIGNED, FP4, NF4, E4M3, E5M2, AFFINE, PALETTE = range(8)
KINDS = 8
FORMS = {"BF16": 0, "F16": 1, "F32": 2}  # the types of values
_BF16, _F16 = 0, 1


def _floats(exponent: int, mantissa: int, bias: int, count: int) -> list[float]:
    """Return the first `count` numbers of a float format from 0 on, subnormal ones included."""
    found = []
    for code in range(count):
        high, low = divmod(code, 1 << mantissa)
        found.append(
            low * 2.0 ** (1 - bias - mantissa) if not high else (1 + low / (1 << mantissa)) * 2.0 ** (high - bias)
        )
    return found


_NF4_BELOW = (0.0, 0.09105003625154495, 0.18477343022823334, 0.28444138169288635, 0.39491748809814453,
              0.5250730514526367, 0.6961928009986877, 1.0)  # fmt: skip
_NF4_ABOVE = (0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
              0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0)  # fmt: skip
_MAGNITUDES = {
    INT: (range(256), range(256)),
    SIGNED: (range(128), range(128)),
    FP4: (_floats(2, 1, 1, 8),) * 2,
    NF4: (_NF4_ABOVE, _NF4_BELOW),
    E4M3: (_floats(4, 3, 7, 127),) * 2,
    E5M2: (_floats(5, 2, 15, 124),) * 2,
    AFFINE: (range(256), range(256)),
    PALETTE: ((0,), (0,)),
}
COUNTS = np.array([[len(side) for side in _MAGNITUDES[kind]] for kind in range(KINDS)], np.int64)
# Magnitudes of positive and of negative levels, ascending from 0.
TABLES = np.zeros((KINDS, 2, 256), np.float32)
for _kind, _sides in _MAGNITUDES.items():
    for _side, _magnitudes in enumerate(_sides):
        TABLES[_kind, _side, : len(_magnitudes)] = _magnitudes


def levels_of(kind: int) -> Array:
    """Return the level of each code, float32 [256]: bit 7 is the sign, the others are a place among the magnitudes."""
    levels: Array = np.concatenate((TABLES[kind, 0, :128], -TABLES[kind, 1, :128]))
    return levels


@inline
def value_of(word, form):
    """Return the value of a word as float32."""
    bits = np.uint32(word)
    if form == _BF16:
        bits = np.uint32(bits << np.uint32(16))
    elif form == _F16:
        low = bits & np.uint32(0x7FFF)
        sign = np.uint32((bits & np.uint32(0x8000)) << np.uint32(16))
        if low >= np.uint32(0x7C00):
            bits = sign | np.uint32(0x7F800000) | np.uint32((low & np.uint32(0x3FF)) << np.uint32(13))
        elif low >= np.uint32(0x400):
            bits = sign | np.uint32(np.uint32(low << np.uint32(13)) + np.uint32(112 << 23))
        else:
            small = np.float32(np.int32(low)) * np.float32(2.0**-24)
            return -small if sign else small
    return np.int32(bits).view(np.float32)


@inline
def rounded(value, form):
    """Return the word of a float32 that is no NaN, rounded to nearest, ties to even."""
    bits = np.uint32(np.float32(value).view(np.int32))
    if form == _BF16:
        bits = np.uint32(bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    elif form == _F16:
        sign = np.uint32((bits >> np.uint32(16)) & np.uint32(0x8000))
        low = bits & np.uint32(0x7FFFFFFF)
        if low >= np.uint32(0x47800000):
            low = np.uint32(0x7C00)
        elif low >= np.uint32(0x38800000):
            low = np.uint32(low - np.uint32(112 << 23))
            low = np.uint32(low + np.uint32(0xFFF) + ((low >> np.uint32(13)) & np.uint32(1))) >> np.uint32(13)
        elif low <= np.uint32(0x33000000):
            low = np.uint32(0)
        else:
            shift = np.uint32(126) - (low >> np.uint32(23))
            whole = np.uint32((low & np.uint32(0x7FFFFF)) | np.uint32(0x800000))
            half = np.uint32(np.uint32(1) << (shift - np.uint32(1)))
            low = np.uint32(whole + half - np.uint32(1) + ((whole >> shift) & np.uint32(1))) >> shift
        bits = sign | low
    return bits


@inline
def rebuilt(level, scale, offset, has_offset, form):
    """Return the word of a level, float32, times a scale, plus an offset."""
    product = np.float32(np.float32(level) * np.float32(scale))
    if has_offset:
        product = np.float32(product + np.float32(offset))
    return rounded(product, form)
