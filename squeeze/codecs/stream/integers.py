"""Coding of matrices of small integers: a dictionary's trained numbers, as differences from untrained ones.

A value is its number of binary digits in unary, its sign, and the digits below the highest. Probabilities of the number
of digits adapt to the values on the left and above. Those of the sign and of the first two digits adapt to the number
of digits. All further digits have even probabilities.
"""

import numpy as np

from squeeze.numerics.bitmodels import coder as arithmetic
from squeeze.numerics.bitmodels.adaptive import EVEN, code_bit, code_digits
from squeeze.numerics.jit import inline, kernel

MAX_DIGITS = 40
_CLASSES = 8  # classes of a neighbour's number of digits
_NUMBERS = MAX_DIGITS + 1  # possible numbers of digits
_SIGNS = _CLASSES * _CLASSES * _NUMBERS  # first entry of signs, after those of numbers of digits
_LEADING = _SIGNS + _NUMBERS  # first entry of digits after the highest
_ENTRIES = _LEADING + 4 * _NUMBERS


@inline
def _digits(value):
    count, remaining = 0, abs(value)
    while remaining:
        count += 1
        remaining >>= 1
    return count


@inline
def _code_value(value, context, entries, coder, coded, decoding):
    digits, count = _digits(value), 0
    while count < MAX_DIGITS:
        index = context * _NUMBERS + count
        if code_bit(np.int64(digits > count), entries, index, coder, coded, decoding) == 0:
            break
        count += 1
    if count == 0:
        return np.int64(0)
    negative = code_bit(np.int64(value < 0), entries, _SIGNS + count, coder, coded, decoding)
    magnitude, path = np.int64(1), 1
    for shift in range(count - 2, -1, -1):
        bit = (abs(value) >> shift) & 1
        if path < 4:
            bit = code_bit(bit, entries, _LEADING + count * 4 + path, coder, coded, decoding)
            path = 2 * path + bit
        else:
            bit = code_digits(bit, 1, coder, coded, decoding)
        magnitude = 2 * magnitude + bit
    return -magnitude if negative else magnitude


@kernel
def _code(values, entries, coder, coded, decoding):
    """Code int64 `values` [R, C] row by row in either direction."""
    for r in range(values.shape[0]):
        left = 0
        for c in range(values.shape[1]):
            above = _digits(values[r - 1, c]) if r else 0
            context = min(left, _CLASSES - 1) * _CLASSES + min(above, _CLASSES - 1)
            values[r, c] = _code_value(values[r, c], context, entries, coder, coded, decoding)
            left = _digits(values[r, c])


def encode(values: np.ndarray) -> bytes:
    """Return the coded form of an integer matrix whose magnitudes are below 2^40."""
    values = np.array(values, np.int64)
    coded, coder = np.zeros(values.size * 12 + 64, np.uint8), np.zeros(3, np.uint64)
    arithmetic.start_encoder(coder)
    _code(values, np.full(_ENTRIES, EVEN, np.uint32), coder, coded, False)
    return coded[: arithmetic.finish_encoder(coder, coded)].tobytes()


def decode(payload: bytes, shape: tuple[int, int]) -> np.ndarray:
    """Decode an int64 matrix of a shape; any payload decodes to some matrix."""
    values, coded, coder = (
        np.zeros(shape, np.int64),
        np.frombuffer(bytearray(payload), np.uint8),
        np.zeros(3, np.uint64),
    )
    arithmetic.start_decoder(coder, coded)
    _code(values, np.full(_ENTRIES, EVEN, np.uint32), coder, coded, True)
    return values
