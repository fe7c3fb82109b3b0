"""Registers for cells of a spreadsheet (BIFF, the records of .xls) or of other records that have a number each.

A record of BIFF begins with its type and its length. So a *chain* of records is followed from the first one on (BOF),
or from the second of two cells. The place of a byte in its record is known then, with the column of the cell. Without a
chain, numbers that count up (records.py) name columns.

Most cells of a column often hold the same value. So the last *unusual* byte tells more than a neighbour: one that is
not the usual byte of its place in the record.
"""

import numpy as np

from squeeze.numerics.bitmodels import records
from squeeze.numerics.bitmodels.contexts import mix_hash
from squeeze.numerics.jit import inline

# Registers, uint64.
CELL = 0  # hash of the place in the record and of the column, or of the count and the bytes since it
COUNTER = 1  # 256 and the low byte of the column or the byte that counted, or 0 without them
UNUSUAL = 2  # last unusual byte at this place of a record (8 bits), bytes since it by the record length (8)
PLACE = 3  # place in the record, at most 255: selects weights
BEFORE = 4  # bytes at this place of the last two records (8 bits each), the place (16), the byte of the third (8)
_FOLLOWED, _OFFSET, _TYPE, _LENGTH, _COLUMN, _TYPE_BEFORE = range(5, 11)  # of the chain
_VOTED = 11
REGISTERS = 12

PLACES, WIDTH = 1 << 13, 5  # rows of `usual`, and numbers of each
_CERTAIN = 255  # most votes for a usual byte
_MOST_TYPE, _MOST_LENGTH = 0x10FF, 8228
_HEADER = 4
_LEAST_CELL, _MOST_CELL = 6, 64  # length of cells that begin a chain
_MULRK, _MULBLANK = 0xBD, 0xBE  # records of several cells
_FIRSTS = np.array([0x00100809, 0x00060209, 0x00060409, 0x00040009, 0x00080809], np.int64)  # types, lengths
# Types of records that begin with row and column.
_WITH_COLUMN = [*range(1, 7), _MULRK, _MULBLANK, 0xD6, 0xFD, *range(0x201, 0x207), 0x27E, 0x406]
_CELLS = np.isin(np.arange(_MOST_TYPE + 1), _WITH_COLUMN)


@inline
def update_byte(r, of_records, usual, data, position, record):
    """Update the registers after the byte data[position - 1], and after those of records.

    Args:
        r: uint64 [REGISTERS].
        of_records: uint64, the registers of records.
        usual: int32 [PLACES, WIDTH], for each place in a record its usual byte and the votes for it, the last other
            byte and the position of that, and the last three bytes.
        data: the block, as far as it is known.
        position: bytes that are known, at least 1.
        record: bytes of a record, at least 1.
    """
    _vote(r, usual, np.int64(data[position - 1]), position - 1)
    _follow(r, data, position)
    since = position - np.int64(of_records[records.COUNTED])
    if r[_FOLLOWED] > np.uint64(0):
        voted = _in_chain(r)
    elif since < records.LIFE * record:
        r[CELL], r[PLACE] = mix_hash(of_records[records.COUNTER], np.uint64(since)), np.uint64(min(since, 255))
        r[COUNTER] = np.uint64(256) | of_records[records.COUNTER]
        voted = np.uint64(since % record)
    else:
        r[CELL], r[COUNTER], r[PLACE] = np.uint64(position % record), np.uint64(0), of_records[records.COLUMN]
        voted = r[CELL]
    row = np.int64(voted) % PLACES
    r[_VOTED] = np.uint64(row)
    distance = min((position - np.int64(usual[row, 3])) // record, 255)
    r[UNUSUAL] = np.uint64(np.int64(usual[row, 2]) | distance << 8)
    before = np.int64(usual[row, 4])
    r[BEFORE] = np.uint64(before & 0xFFFF | row << 16 | before >> 16 << 32)


@inline
def selectors(r, third):
    """Return what selects weights in place of the classes of bytes, and the column in place of `third` if known."""
    counter = np.int64(r[COUNTER])
    return np.int64(r[PLACE]), counter & 0xFF if counter else third


@inline
def _follow(r, data, position):
    """Follow the chain of records over a byte; one begins after the type and length of a first record."""
    offset = np.int64(r[_OFFSET]) + 1
    begin = position - _HEADER
    latest = _number(data, begin) | _number(data, begin + 2) << 16 if begin >= 0 else 0
    if _begins(data, begin, latest, r[_FOLLOWED] > np.uint64(0)):
        r[_FOLLOWED], r[_COLUMN], offset = np.uint64(1), np.uint64(0), _HEADER
        r[_TYPE] = np.uint64(latest & 0xFFFF)
    if r[_FOLLOWED] == np.uint64(0):
        return
    if offset == 2:
        r[_TYPE] = np.uint64(latest >> 16)
        r[_FOLLOWED] = np.uint64(r[_TYPE] <= np.uint64(_MOST_TYPE))
    elif offset == _HEADER:
        r[_LENGTH] = np.uint64(latest >> 16)
        r[_FOLLOWED] = np.uint64(r[_LENGTH] <= np.uint64(_MOST_LENGTH))
    elif offset == _HEADER + 4 and _CELLS[r[_TYPE]]:
        r[_COLUMN] = np.uint64(latest >> 16)
    if offset >= _HEADER and offset >= _HEADER + np.int64(r[_LENGTH]):
        if r[_TYPE] == np.uint64(_MULRK) or r[_TYPE] == np.uint64(_MULBLANK):
            width = 6 if r[_TYPE] == np.uint64(_MULRK) else 2
            r[_COLUMN] += np.uint64(max(np.int64(r[_LENGTH]) - 6, 0) // width)
        r[_TYPE_BEFORE], offset = r[_TYPE], 0
    r[_OFFSET] = np.uint64(offset)


@inline
def _begins(data, place, header, followed):
    """Return whether a chain begins: with a first record, or with the header of a cell that follows another cell."""
    for k in range(_FIRSTS.size):
        if header == _FIRSTS[k]:
            return True
    if followed or not _is_of_cell(header):
        return False
    for length in range(_LEAST_CELL, min(_MOST_CELL, place - _HEADER) + 1):
        before = place - _HEADER - length
        if _number(data, before + 2) == length and _is_of_cell(_number(data, before) | length << 16):
            return True
    return False


@inline
def _is_of_cell(header):
    kind, length = header & 0xFFFF, header >> 16
    return kind <= _MOST_TYPE and _LEAST_CELL <= length <= _MOST_CELL and _CELLS[min(kind, _MOST_TYPE)]


@inline
def _number(data, place):
    return np.int64(data[place]) | np.int64(data[place + 1]) << 8


@inline
def _in_chain(r):
    """Write the registers for a byte of a chain, and return a number for its place in records of its type.

    Before the column is read, that of the next cell of the row is expected.
    """
    offset, kind, column = np.int64(r[_OFFSET]), np.int64(r[_TYPE]), np.int64(r[_COLUMN])
    if offset < 2:
        kind = np.int64(r[_TYPE_BEFORE])
    if not _CELLS[kind]:
        column = 0
    elif offset < _HEADER + 4:
        column += 1
    elif kind in (_MULRK, _MULBLANK):
        width = 6 if kind == _MULRK else 2
        column += (offset - _HEADER - 4) // width
        offset = _HEADER + 4 + (offset - _HEADER - 4) % width
    place = mix_hash(np.uint64(kind), np.uint64(offset)) >> np.uint64(48)
    r[CELL] = mix_hash(place, np.uint64(column))
    r[COUNTER] = np.uint64(256 | column & 0xFF)
    r[PLACE] = np.uint64(min(offset, 255))
    return place


@inline
def _vote(r, usual, byte, last):
    """Count a byte for or against the usual one of its place, and note it if it is another."""
    row = np.int64(r[_VOTED]) % PLACES
    usual[row, 4] = np.int32((np.int64(usual[row, 4]) << 8 | byte) & 0xFFFFFF)
    if np.int64(usual[row, 0]) == byte:
        usual[row, 1] = min(np.int64(usual[row, 1]) + 1, _CERTAIN)
        return
    if usual[row, 1] == 0:
        usual[row, 0], usual[row, 1] = np.int32(byte), np.int32(1)
    else:
        usual[row, 1] -= np.int32(1)
    usual[row, 2], usual[row, 3] = np.int32(byte), np.int32(last)
