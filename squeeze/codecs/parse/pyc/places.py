"""The places in the source of instructions, as Python 3.11 and later write them (Objects/locations.md), as rows.

An entry of such a table has one of several forms, by the size of what it says. A row always has four bytes: the
difference of lines, the first column, the columns, and the number of instructions with flags. So the model of tables
finds each in its column.
"""

import io

from squeeze.errors import DamagedError
from squeeze.system.binary import read_exactly, read_varint, varint

__all__ = ["ROW", "read_rows", "to_rows", "to_table"]

ROW = 4  # bytes
_MARK, _MORE, _GROUP = 128, 64, 6  # of an entry; of a number that goes on, and its bits in a byte
_LONGEST = 30  # bits of a number, at most
_SHORT, _ONE_LINE, _NO_COLUMNS, _LONG, _NOTHING = 10, 10, 13, 14, 15  # forms: those below 10 have columns below 80
_NONE, _LINE_ONLY, _LINES, _FAR = 8, 16, 32, 64  # flags: no place, no columns, several lines, a large difference
_MOST = 256  # columns that a row has


def to_rows(table: bytes) -> tuple[bytes, bytes] | None:
    """Return the rows of a table, and what they have no room for; None if Python would write them in another form."""
    rows, more, at = bytearray(), bytearray(), 0
    try:
        while at < len(table):
            head, at = table[at], at + 1
            form, flags = head >> 3 & 15, head & 7
            line = first = last = lines = 0
            if form == _NOTHING:
                flags |= _NONE
            elif form == _NO_COLUMNS:
                (line, at), flags = _read(table, at), flags | _LINE_ONLY
            elif form == _LONG:
                line, at = _read(table, at)
                lines, at = _read(table, at)
                first, at = _read(table, at)
                last, at = _read(table, at)
                first, last = first - 1, last - 1
            elif form >= _ONE_LINE:
                line, first, last, at = 2 * (form - _ONE_LINE), table[at], table[at + 1], at + 2
            else:
                first = form << 3 | table[at] >> 4 & 7
                last, at = first + (table[at] & 15), at + 1
            if not (0 <= first < _MOST and 0 <= last < _MOST):
                return None
            if line >= 256:
                flags |= _FAR
                more += varint(line >> 8)
            if lines:
                flags |= _LINES
                more += varint(lines)
            rows += bytes((line & 255, first, (last - first) % _MOST, flags))
    except IndexError:
        return None
    made = bytes(rows), bytes(more)
    return made if to_table(made[0], io.BytesIO(made[1])) == table else None


def to_table(rows: bytes, more: io.BytesIO) -> bytes:
    """Return the table of rows, with what they have no room for from a stream.

    Raises:
        DamagedError: if the stream ends before.
    """
    table = bytearray()
    for at in range(0, len(rows), ROW):
        line, first, columns, flags = rows[at : at + ROW]
        last, head = (first + columns) % _MOST, _MARK | flags & 7
        if flags & _FAR:
            line |= _shorter(read_varint(more)[0]) << 8
        lines = _shorter(read_varint(more)[0]) if flags & _LINES else 0
        if flags & _NONE:
            table.append(head | _NOTHING << 3)
        elif flags & _LINE_ONLY:
            table.append(head | _NO_COLUMNS << 3)
            _write(table, line)
        elif not lines and not line and first < 8 * _SHORT and first <= last < first + 16:
            table += bytes((head | first >> 3 << 3, (first & 7) << 4 | last - first))
        elif not lines and line in (0, 2, 4) and first < 128 and last < 128:
            table += bytes((head | (_ONE_LINE + line // 2) << 3, first, last))
        else:
            table.append(head | _LONG << 3)
            for number in (line, lines, first + 1, last + 1):
                _write(table, number)
    return bytes(table)


def read_rows(stream: io.BytesIO, count: int) -> bytes:
    """Return some rows from a stream.

    Raises:
        DamagedError: if it has fewer.
    """
    if ROW * count > len(stream.getbuffer()):
        raise _impossible()
    return read_exactly(stream, ROW * count)


def _shorter(number: int) -> int:
    if number >> 32:
        raise _impossible()
    return number


def _read(table: bytes, at: int) -> tuple[int, int]:
    """Return a number of groups of bits, the lowest first, and the place after it.

    Raises:
        IndexError: if the table ends before, or no line has such a number.
    """
    number = shift = 0
    while table[at] & _MORE:
        if shift >= _LONGEST:
            raise IndexError
        number |= (table[at] & (_MORE - 1)) << shift
        at, shift = at + 1, shift + _GROUP
    return number | (table[at] & (_MORE - 1)) << shift, at + 1


def _write(table: bytearray, number: int) -> None:
    while number >= _MORE:
        table.append(number & (_MORE - 1) | _MORE)
        number >>= _GROUP
    table.append(number)


def _impossible() -> DamagedError:
    return DamagedError("the places of a file of byte code are impossible: the file is damaged")
