"""A binary arithmetic coder with a 64-bit interval and 32-bit probabilities, which propagates carries in the output.

A coder is a uint64 array [3]: the low end of the interval (decoding: the code minus the low end), its width, and the
position in the byte buffer. The width is above 2^56 before each bit, so rounding costs less than 2^-24 of a bit. The
coder does not know the models. See Martin, "Range encoding", 1979.
"""

import numpy as np

from squeeze.numerics.jit import inline, kernel

_LOW, _WIDTH, POSITION = 0, 1, 2
_FULL = np.uint64(0xFFFFFFFFFFFFFFFF)
_LEAST_WIDTH = np.uint64(1 << 56)
SPARE = 64  # bytes: more than one byte of input can add to the coded bytes


@inline
def is_over(coder, coded, decoding):
    """Return whether the coded bytes are used up (decoding) or the buffer for them is full (encoding)."""
    return np.int64(coder[POSITION]) > coded.size + (SPARE if decoding else -2 * SPARE)


@kernel
def start_encoder(coder):
    """Initialise a coder for encoding."""
    coder[_LOW] = np.uint64(0)
    coder[_WIDTH] = _FULL
    coder[POSITION] = np.uint64(0)


@kernel
def start_decoder(coder, coded):
    """Initialise a coder for decoding the bytes `coded`."""
    coder[_LOW] = np.uint64(0)
    coder[_WIDTH] = _FULL
    coder[POSITION] = np.uint64(0)
    for _ in range(8):
        coder[_LOW] = (coder[_LOW] << np.uint64(8)) | _next_byte(coder, coded)


@inline
def _next_byte(coder, coded):
    """Return the next coded byte, or 0 after the end."""
    position = np.int64(coder[POSITION])
    coder[POSITION] += np.uint64(1)
    if position < coded.size:
        return np.uint64(coded[position])
    return np.uint64(0)


@inline
def _add_carry(coder, coded):
    i = np.int64(coder[POSITION]) - 1
    while 0 <= i < coded.size and coded[i] == 255:
        coded[i] = 0
        i -= 1
    if 0 <= i < coded.size:
        coded[i] += np.uint8(1)


@inline
def encode(bit, probability, coder, coded):
    """Encode a bit.

    Args:
        bit: The bit.
        probability: The 32-bit probability that it is a one.
        coder: The state of the coder.
        coded: The output. What no longer fits is lost; the position counts on.
    """
    low, width = coder[_LOW], coder[_WIDTH]
    ones = (width >> np.uint64(32)) * np.uint64(probability)
    if bit:
        width = ones
    else:
        width -= ones
        coder[_LOW] = low + ones
        if coder[_LOW] < low:
            _add_carry(coder, coded)
    while width < _LEAST_WIDTH:
        if np.int64(coder[POSITION]) < coded.size:
            coded[np.int64(coder[POSITION])] = np.uint8(coder[_LOW] >> np.uint64(56))
        coder[POSITION] += np.uint64(1)
        coder[_LOW] <<= np.uint64(8)
        width <<= np.uint64(8)
    coder[_WIDTH] = width


@inline
def decode(probability, coder, coded):
    """Decode the bit that was encoded with this 32-bit probability of a one."""
    width = coder[_WIDTH]
    ones = (width >> np.uint64(32)) * np.uint64(probability)
    bit = np.int64(coder[_LOW] < ones)
    if bit:
        width = ones
    else:
        width -= ones
        coder[_LOW] -= ones
    while width < _LEAST_WIDTH:
        coder[_LOW] = (coder[_LOW] << np.uint64(8)) | _next_byte(coder, coded)
        width <<= np.uint64(8)
    coder[_WIDTH] = width
    return bit


@kernel
def finish_encoder(coder, coded):
    """Write the fewest bytes that identify a point of the interval, and return the coded length.

    It is larger than the buffer if bytes were lost.
    """
    low, width = coder[_LOW], coder[_WIDTH]
    point, count = low, 0
    for count in range(9):
        below = _FULL >> np.uint64(8 * count) if count < 8 else np.uint64(0)
        point = (low + below) & ~below
        if point - low < width:
            break
    if point < low:
        _add_carry(coder, coded)
    end = np.int64(coder[POSITION])
    for k in range(count):
        if end < coded.size:
            coded[end] = np.uint8(point >> np.uint64(56 - 8 * k))
        end += 1
    return end
