"""Registers for cells that are those of an earlier place: a name in every line of a log, a number that has two keys.

At the end of each cell the same bytes are searched among the latest cells. How many cells back they were is noted for
what came before the cell, in two ways: by the form of the line with the key, and by the number of the cell with the
distance of the cell before. Where the same comes again, the cell at that distance shows the next bytes.
"""

import numpy as np

from squeeze.numerics.bitmodels import fields
from squeeze.numerics.bitmodels.contexts import mix_hash
from squeeze.numerics.jit import inline

# Registers, uint64. By the form of the line and the key, and by the number of the cell: the byte that is expected
# (8 bits), how many agreed in the cell (4), how often in a row such a cell was right (4), and 1; 0 without a byte.
BY_FORM, BY_PLACE = 0, 1
_ROW, _FROM = 2, 4  # two each: row of `distances`, and where the expected byte is, or 0
_HASH, _BEGIN, _COUNT, _BEFORE = range(6, 10)  # of the cell so far, where it begins; whole cells; key of the one before
_HASHES = 10
_CELLS = 32  # latest cells that are searched
_BEGINS = _HASHES + _CELLS
REGISTERS = _BEGINS + _CELLS
ROWS = 1 << 12  # of each of two tables
_MOST = 15


@inline
def update_byte(c, f, distances, data, position):
    """Update the registers after the byte data[position - 1].

    Args:
        c: uint64 [REGISTERS].
        f: uint64, the registers of fields.py after this byte.
        distances: int32 [2 * ROWS], cells back (8 bits) and how often that was right in a row.
        data: The block.
        position: The number of bytes so far.
    """
    byte = np.uint64(data[position - 1])
    if fields.ENDS_CELL[byte]:
        if position - 1 > np.int64(c[_BEGIN]):
            _end_cell(c, distances)
        _begin_cell(c, f, distances, position)
    else:
        c[_HASH] = mix_hash(c[_HASH], byte)
        for k in range(2):
            at = c[_FROM + k]
            c[_FROM + k] = at + np.uint64(1) if at > np.uint64(0) and np.uint64(data[at]) == byte else np.uint64(0)
    agreed = min(np.uint64(position) - c[_BEGIN], np.uint64(_MOST))
    for k in range(2):
        at = c[_FROM + k]
        c[k] = np.uint64(0)
        if at > np.uint64(0):
            right = np.uint64(distances[c[_ROW + k]] >> 8)
            c[k] = np.uint64(data[at]) | (agreed << np.uint64(8)) | (right << np.uint64(12)) | np.uint64(1 << 16)


@inline
def _end_cell(c, distances):
    """Search a whole cell among those before, and note how far back it was."""
    found, count, same = np.int64(0), c[_COUNT], c[_HASH]
    for back in range(1, _CELLS + 1):
        if found == 0 and c[_HASHES + np.int64((count - np.uint64(back)) & np.uint64(_CELLS - 1))] == same:
            found = back
    for k in range(2):
        row = c[_ROW + k]
        entry = np.int64(distances[row])
        back, right = entry & 255, entry >> 8
        if back > 0 and c[_HASHES + np.int64((count - np.uint64(back)) & np.uint64(_CELLS - 1))] == same:
            right = min(right + 1, _MOST)
            found = back
        elif found > 0:
            back, right = found, np.int64(0)
        else:
            right >>= 1
        distances[row] = np.int32(back | (right << 8))
    at = np.int64(count & np.uint64(_CELLS - 1))
    c[_HASHES + at], c[_BEGINS + at] = same, c[_BEGIN]
    c[_COUNT] = count + np.uint64(1)
    c[_BEFORE] = np.uint64(found) if found > 0 else same


@inline
def _begin_cell(c, f, distances, position):
    """Find the cells at the distances that are noted for this one."""
    c[_HASH], c[_BEGIN] = np.uint64(0), np.uint64(position)
    c[_ROW] = mix_hash(f[fields.SHAPE], f[fields.KEY]) >> np.uint64(52)
    c[_ROW + 1] = np.uint64(ROWS) + (mix_hash(f[fields.CELLS], c[_BEFORE]) >> np.uint64(52))
    for k in range(2):
        back = np.uint64(distances[c[_ROW + k]] & 255)
        c[_FROM + k] = np.uint64(0)
        if back > np.uint64(0):
            c[_FROM + k] = c[_BEGINS + np.int64((c[_COUNT] - back) & np.uint64(_CELLS - 1))]
