"""Writing rows of facsimile: by the rules there is one coding of a row (ITU-T T.4, T.6)."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from squeeze.codecs.parse.fax.codes import BLACK, HORIZONTAL, LARGEST, MODES, PASS, WHITE
from squeeze.codecs.parse.fax.reading import ALIGNED, END_OF_LINE, EOL_BITS, MARGIN, ONE, TWO
from squeeze.numerics.jit import inline, kernel

__all__ = ["Form", "write"]

_PASS, _HORIZONTAL, _LARGEST = PASS, HORIZONTAL, LARGEST
_WHITES, _WHITE_LENGTHS = WHITE.values, WHITE.lengths
_BLACKS, _BLACK_LENGTHS = BLACK.values, BLACK.lengths
_MODES, _MODE_LENGTHS = MODES.values, MODES.lengths
_ZEROS = np.array([8 - int(byte).bit_length() for byte in range(256)])  # before the first one of a byte
_LEAST_BUFFER = 1 << 16  # bytes
_MOST_OF_PIXEL, _MOST_OF_ROW = 8, 64  # bits


class Form(NamedTuple):
    """The form of a coding of rows.

    Attributes:
        columns: Pixels of a row.
        flags: END_OF_LINE, ALIGNED.
        period: 0 for rows of one dimension, 1 for rows of two; else a bit before each row says its dimensions, and
            every `period - 1` rows there is one of one dimension.
        ends: The ends of lines after the last row.
    """

    columns: int
    flags: int
    period: int
    ends: int

    @property
    def row(self) -> int:
        """The bytes of a row of pixels."""
        return (self.columns + 7) // 8


def write(pixels: np.ndarray, form: Form) -> np.ndarray:
    """Return the coding of uint8 [rows, bytes] pixels, with zeros in the last byte after the last code."""
    return np.concatenate(list(_parts(pixels, form)))


def _parts(pixels: np.ndarray, form: Form) -> Iterator[np.ndarray]:
    """Yield the coding in parts, so that a buffer of a few rows is enough."""
    most = _MOST_OF_PIXEL * form.columns + _MOST_OF_ROW
    buffer = np.zeros(max(_LEAST_BUFFER, most), np.uint8)
    lines = np.full((2, form.columns + MARGIN), form.columns, np.int64)
    row, place = 0, np.zeros(1, np.int64)
    while row < len(pixels):
        row = _write(pixels, row, form, lines, buffer, place, most)
        whole = int(place[0] >> 3)
        yield buffer[:whole].copy()
        last = buffer[whole]
        buffer[: whole + 1] = 0
        buffer[0] = last
        place &= 7
    for _ in range(form.ends):
        _write_end(form.period > TWO, buffer, place)
    yield buffer[: (int(place[0]) + 7) >> 3]


@inline
def _put(buffer, place, value, count):
    """Write the low `count` bits of a value, at most 16."""
    at = place[0]
    shifted = value << (24 - count - (at & 7))
    for k in range(3):
        buffer[(at >> 3) + k] |= np.uint8(shifted >> (16 - 8 * k) & 255)
    place[0] = at + count


@kernel
def _write_end(tagged, buffer, place):
    """Write an end of a line, and the bit that says one dimension."""
    _put(buffer, place, 3 if tagged else 1, EOL_BITS + tagged)


@inline
def _put_run(buffer, place, length, color):
    """Write the codes of a run: of the largest length as often as it fits, then of a multiple of 64, then the rest."""
    while length >= 0:
        number = length if length < 64 else 63 + min(length >> 6, _LARGEST)
        if color:
            _put(buffer, place, _BLACKS[number], _BLACK_LENGTHS[number])
        else:
            _put(buffer, place, _WHITES[number], _WHITE_LENGTHS[number])
        length = -1 if length < 64 else length - (min(length >> 6, _LARGEST) << 6)


@inline
def _find_changes(row, columns, line):
    """Write the places where the colour of a row of bits changes, white before it, and the end at least four times."""
    x, count, inverted = np.int64(0), 0, np.int64(0)
    while x < columns:
        rest = ((np.int64(row[x >> 3]) ^ inverted) << (x & 7)) & 255
        if rest == 0:
            x = (x | 7) + 1
            continue
        x += _ZEROS[rest]
        if x < columns:
            line[count] = x
            count += 1
            inverted ^= 255
    for k in range(4):
        line[count + k] = columns
    return count


@inline
def _put_line(buffer, place, columns, line):
    """Write a row as runs."""
    at, k = np.int64(0), 0
    while at < columns:
        _put_run(buffer, place, line[k] - at, k & 1)
        at = line[k]
        k += 1


@inline
def _put_from(buffer, place, columns, above, line):
    """Write a row by its changes from those of the row above."""
    at, color, k, b = np.int64(-1), 0, 0, 0
    while at < columns:
        b = b - 1 if b & 1 != color and b > 0 else b + (b & 1 ^ color)
        while b > 1 and above[b - 2] > at:
            b -= 2
        while above[b] <= at and above[b] < columns:
            b += 2
        if above[b + 1] < line[k]:
            mode, at = _PASS, above[b + 1]
            _put(buffer, place, _MODES[mode], _MODE_LENGTHS[mode])
        elif abs(line[k] - above[b]) <= 3:
            mode, at = line[k] - above[b] + 3, line[k]
            _put(buffer, place, _MODES[mode], _MODE_LENGTHS[mode])
            k += 1
            color ^= 1
        else:
            _put(buffer, place, _MODES[_HORIZONTAL], _MODE_LENGTHS[_HORIZONTAL])
            _put_run(buffer, place, line[k] - max(at, 0), color)
            _put_run(buffer, place, line[k + 1] - line[k], color ^ 1)
            at = line[k + 1]
            k += 2


@kernel
def _write(pixels, row, form, lines, buffer, place, most):
    """Write rows from number `row` on while `most` bits of a row fit in the buffer; return the next row's number."""
    tagged = form.period > TWO
    while row < pixels.shape[0] and place[0] + most <= 8 * buffer.size:
        if form.flags & END_OF_LINE:
            if form.flags & ALIGNED:
                place[0] += (4 - place[0]) & 7
            _put(buffer, place, 1, EOL_BITS)
        elif form.flags & ALIGNED:
            place[0] = (place[0] + 7) & ~7
        single = form.period == ONE or (tagged and row % (form.period - 1) == 0)
        if tagged:
            _put(buffer, place, 1 if single else 0, 1)
        above, line = lines[row & 1], lines[1 - (row & 1)]
        _find_changes(pixels[row], form.columns, line)
        if single:
            _put_line(buffer, place, form.columns, line)
        else:
            _put_from(buffer, place, form.columns, above, line)
        row += 1
    return row
