"""Registers for records whose length is not known, or changes: tables in fonts, structures of programs, pages of
numbers.

A byte value that comes back three times at one distance votes for that distance as the *stride*. The bytes one and two
strides before the next byte are its neighbours then, as in a table. Another register has which of the latest bytes are
zero, and which are those of four bytes before: the outline of a structure of 32-bit numbers.
"""

import numpy as np

from squeeze.numerics.jit import inline

# Registers, uint64.
NEAR = 0  # bytes one and two strides before the next one (8 bits each), the bytes right and left of the first (8 each),
#   the stride (16); 0 without a stride
ZEROS = 1  # two bits for each of the latest eight bytes: whether it is zero, and whether it is that of four before
_STRIDE, _TRUST, _CANDIDATE, _VOTES = range(2, 6)
REGISTERS = 6

POSITIONS = 3 * 256  # size of `positions`
_LONGEST = 4095  # longest stride, in bytes
_ENOUGH = 5  # votes for a new stride, and votes against the present one that it survives
_MOST_TRUST = 15


@inline
def update_byte(r, positions, data, position):
    """Update the registers after the byte data[position - 1].

    Args:
        r: uint64 [REGISTERS].
        positions: int32 [POSITIONS], where each byte value was the last three times, or 0.
        data: the block, as far as it is known.
        position: bytes that are known, at least 1.
    """
    byte = np.int64(data[position - 1])
    same = np.int64(position > 4 and np.int64(data[position - 5]) == byte)
    r[ZEROS] = ((r[ZEROS] << np.uint64(2)) | np.uint64(2 * same + np.int64(byte == 0))) & np.uint64(0xFFFF)
    first, second, third = positions[3 * byte], positions[3 * byte + 1], positions[3 * byte + 2]
    distance = position - np.int64(first)
    positions[3 * byte], positions[3 * byte + 1], positions[3 * byte + 2] = np.int32(position), first, second
    if third > 0 and 1 < distance <= _LONGEST and distance == first - second and distance == second - third:
        _vote(r, np.uint64(distance))
    stride = np.int64(r[_STRIDE])
    r[NEAR] = np.uint64(0)
    if stride > 0 and 2 * stride <= position:
        above, above2 = np.int64(data[position - stride]), np.int64(data[position - 2 * stride])
        right, left = np.int64(data[position - stride + 1]), np.int64(data[position - stride - 1])
        r[NEAR] = np.uint64(above | above2 << 8 | right << 16 | left << 24 | stride << 32)


@inline
def _vote(r, distance):
    """Count a vote for a stride; one with enough votes replaces another that lost its trust."""
    if distance == r[_STRIDE]:
        r[_TRUST] = min(r[_TRUST] + np.uint64(1), np.uint64(_MOST_TRUST))
        return
    if distance == r[_CANDIDATE]:
        r[_VOTES] += np.uint64(1)
    elif r[_VOTES] > np.uint64(0):
        r[_VOTES] -= np.uint64(1)
    else:
        r[_CANDIDATE], r[_VOTES] = distance, np.uint64(1)
    if r[_TRUST] > np.uint64(0):
        r[_TRUST] -= np.uint64(1)
    elif r[_VOTES] >= np.uint64(_ENOUGH):
        r[_STRIDE], r[_TRUST], r[_VOTES] = distance, np.uint64(_ENOUGH), np.uint64(0)
