"""Reading rows of facsimile: each is a list of places where its colour changes, and becomes bits (ITU-T T.4, T.6)."""

import numpy as np

from squeeze.codecs.parse.fax.codes import BLACK, HORIZONTAL, MODE_BITS, MODES, PASS, RUN_BITS, WHITE
from squeeze.numerics.jit import inline, kernel

__all__ = ["ALIGNED", "END_OF_LINE", "MARGIN", "MOST_ENDS", "ONE", "TAGGED", "TWO", "read"]

ONE, TWO, TAGGED = 0, 1, 2  # dimensions of rows: one; two; and what a bit before each row says
END_OF_LINE, ALIGNED = 1, 2  # flags: a code before each row; zeros, so that rows begin with whole bytes
EOL_BITS = 12  # eleven zeros and a one
_MOST_FILLED = 7  # zeros before such a code, so that it ends with a byte
MOST_ENDS = 6  # ends of lines after the last row
MARGIN = 8  # places in a list beyond those of a row
_LEFT = 6  # places that two changes and the end of a row may take
_RUN_BITS, _MODE_BITS, _PASS, _HORIZONTAL = RUN_BITS, MODE_BITS, PASS, HORIZONTAL
_OF_WHITE, _OF_BLACK, _OF_MODES = WHITE.found, BLACK.found, MODES.found


@inline
def _peek(data, place, count):
    """Return the `count` bits from a place on, at most 16; those after the data are zeros."""
    value, byte = np.int64(0), place >> 3
    for k in range(3):
        value = value << 8 | (np.int64(data[byte + k]) if byte + k < data.size else 0)
    return (value >> (24 - count - (place & 7))) & ((np.int64(1) << count) - 1)


@inline
def _read_run(data, place, color, most, found):
    """Read the length of a run to `found[0]`, or -1 if it is invalid or above `most`; return the place after it."""
    total, number = np.int64(0), np.int64(64)
    while number >= 64:
        bits = _peek(data, place, _RUN_BITS)
        entry = _OF_BLACK[bits] if color else _OF_WHITE[bits]
        if not entry or place >= 8 * data.size or total > most:
            found[0] = -1
            return place
        place += entry & 15
        number = entry >> 4
        total += number if number < 64 else (number - 63) << 6
    found[0] = total
    return place


@inline
def _read_line(data, place, columns, line, found):
    """Read a row as runs; return the place after it, or -1. The number of changes goes to `found[1]`."""
    at, count, color = np.int64(0), np.int64(0), np.int64(0)
    while at < columns:
        place = _read_run(data, place, color, columns - at, found)
        at += found[0]
        if found[0] < 0 or at > columns or count + _LEFT > line.size:
            return np.int64(-1)
        line[count] = at
        count += 1
        color ^= 1
    found[1] = count
    return place


@inline
def _read_from(data, place, columns, above, line, found):
    """Read a row by its changes from those of the row above; the result is that of `_read_line`."""
    at, count, color, b = np.int64(-1), np.int64(0), np.int64(0), np.int64(0)
    while at < columns:
        if place >= 8 * data.size or count + _LEFT > line.size:
            return np.int64(-1)
        b = b - 1 if b & 1 != color and b > 0 else b + (b & 1 ^ color)
        while b > 1 and above[b - 2] > at:
            b -= 2
        while above[b] <= at and above[b] < columns:
            b += 2
        entry = _OF_MODES[_peek(data, place, _MODE_BITS)]
        place += entry & 15
        mode = entry >> 4
        if not entry:
            return np.int64(-1)
        if mode == _PASS:
            at = np.int64(above[b + 1])
        elif mode == _HORIZONTAL:
            at = max(at, 0)
            for k in range(2):
                place = _read_run(data, place, color ^ k, columns - at, found)
                at += found[0]
                if found[0] < 0 or at > columns:
                    return np.int64(-1)
                line[count] = at
                count += 1
        else:
            to = above[b] + mode - 3
            if to < max(at, 0) or to > columns:
                return np.int64(-1)
            at = np.int64(to)
            line[count] = at
            count += 1
            color ^= 1
    found[1] = count
    return place


@inline
def _paint(row, line, count):
    """Set the bits of the black runs of a row, whose first changes are at `line[:count]`."""
    for k in range(0, count - 1, 2):
        x, end = np.int64(line[k]), np.int64(line[k + 1])
        while x < end:
            if x & 7 == 0 and end - x >= 8:
                row[x >> 3] = 255
                x += 8
            else:
                row[x >> 3] |= np.uint8(128 >> (x & 7))
                x += 1


@kernel
def read(data, dimensions, flags, columns, pixels, lines, tags, found):
    """Read rows up to one that is invalid, and return their number.

    Args:
        data: uint8, the coded rows, high bits first.
        dimensions: ONE, TWO or TAGGED.
        flags: END_OF_LINE; and ALIGNED, which is without meaning with END_OF_LINE.
        columns: the pixels of a row.
        pixels: uint8 [rows, bytes], zeros; gets ones for black pixels.
        lines: int64 [2, columns + MARGIN], places of changes.
        tags: uint8 [rows], gets 1 for rows of one dimension.
        found: int64 [5], room. The third value gets the number of bits that were read. The fourth says whether there
            were zeros before ends of lines. The fifth gets the number of ends after the last row.
    """
    place, rows, now = np.int64(0), 0, 0
    lines[0, :] = columns
    found[3] = 0
    while rows < pixels.shape[0]:
        at = place
        if flags & END_OF_LINE:
            while at < 8 * data.size and at - place < EOL_BITS + _MOST_FILLED and not _peek(data, at, 1):
                at += 1
            if not EOL_BITS <= at - place + 1 <= EOL_BITS + _MOST_FILLED:
                break
            found[3] |= at - place > EOL_BITS - 1
            at += 1
        elif flags & ALIGNED:
            at = (at + 7) & ~7
        tags[rows] = dimensions == ONE
        if dimensions == TAGGED:
            tags[rows] = _peek(data, at, 1)
            at += 1
        above, line = lines[now], lines[1 - now]
        if tags[rows]:
            at = _read_line(data, at, columns, line, found)
        else:
            at = _read_from(data, at, columns, above, line, found)
        if at < 0 or at > 8 * data.size:
            break
        for k in range(4):
            line[found[1] + k] = columns
        _paint(pixels[rows], line, found[1] + 1)
        place, now = at, 1 - now
        rows += 1
    ends, length = 0, EOL_BITS + (dimensions == TAGGED)
    while ends < MOST_ENDS and _peek(data, place, length) == (3 if dimensions == TAGGED else 1):
        place += length
        ends += 1
    found[2], found[4] = place, ends
    return rows
