"""Registers for records of one length: bytes that count up, what changed, and what neighbours lead one to expect.

A byte of a record *counts* if it and the two bytes above it are an arithmetic progression, as numbers of rows and
columns are. The byte's value, with the bytes since it, is a context that does not depend on where records begin. So it
holds in rows that other data has moved.
"""

import numpy as np

from squeeze.numerics.bitmodels.contexts import mix_hash
from squeeze.numerics.jit import inline

# Registers, uint64.
COUNT = 0  # byte above (8 bits), the one to its right (8), hash of the count and the bytes since it (48)
CHANGES = 1  # hash of the column, and of this record's bytes so far and the last record's that differ from those above
LINEAR = (
    2  # bytes expected by the difference of the byte before (8 bits) and by that of the byte above (8), column (16)
)
COLUMN = 3  # bytes since the count, or the column without one, at most 255: selects weights
_CHANGED, _CHANGED_ABOVE = 4, 5
COUNTER, COUNTED = 6, 7  # value and position of the byte that counted
REGISTERS = 8

LIFE = 4  # records after which a count is over


@inline
def update_byte(r, data, position, record):
    """Update the registers after the byte data[position - 1].

    Args:
        r: uint64 [REGISTERS].
        data: the block, as far as it is known.
        position: bytes that are known, at least 1.
        record: bytes of a record, at least 1.
    """
    last = position - 1
    left = np.int64(data[last])
    if last >= record:
        above = np.int64(data[last - record])
        if left != above:
            r[_CHANGED] = mix_hash(r[_CHANGED], np.uint64(left | last % record << 8))
            counted = np.int64(r[COUNTED])
            in_turn = last == counted + record or last > counted + LIFE * record
            if in_turn and last >= 2 * record and (2 * above - np.int64(data[last - 2 * record])) & 255 == left:
                r[COUNTER], r[COUNTED] = np.uint64(left), np.uint64(last)
    column = position % record
    if column == 0:
        r[_CHANGED_ABOVE], r[_CHANGED] = r[_CHANGED], np.uint64(0)
    since = position - np.int64(r[COUNTED])
    r[COLUMN] = np.uint64(min(since if since < LIFE * record else column, 255))
    r[CHANGES] = mix_hash(mix_hash(r[_CHANGED], np.uint64(column)), r[_CHANGED_ABOVE])
    _expect(r, data, position, record)
    if since < LIFE * record:
        r[COUNT] |= mix_hash(r[COUNTER], np.uint64(since)) << np.uint64(16)
    else:
        r[COUNT] |= mix_hash(r[LINEAR] >> np.uint64(8), np.uint64(0)) << np.uint64(16)


@inline
def _expect(r, data, position, record):
    """Write what the neighbours of the next byte lead one to expect, and those above it."""
    left = np.int64(data[position - 1])
    above = np.int64(data[position - record]) if position >= record else 0
    above2 = np.int64(data[position - 2 * record]) if position >= 2 * record else 0
    above_left = np.int64(data[position - record - 1]) if position > record else 0
    right = np.int64(data[position - record + 1]) if 1 < record <= position else 0
    expected, expected_above = (left + above - above_left) & 255, (2 * above - above2) & 255
    r[LINEAR] = np.uint64(expected_above | expected << 8 | position % record << 16)
    r[COUNT] = np.uint64(above | right << 8)
