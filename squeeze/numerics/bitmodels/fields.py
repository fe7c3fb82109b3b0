"""Registers for lines of the same form, such as logs, tables of text and JSON lines.

Two places in the text before show what may come next. One is the same field of the line above, the other the last place
that the same marks preceded in a line. Other registers have the field so far with its key or its place in the line, and
the whole field above. The last has a number by its difference from the one before. All are updated after every byte.
"""

import numpy as np

from squeeze.numerics.bitmodels.contexts import mix_hash
from squeeze.numerics.jit import inline

# Registers, uint64. Of the line above and of the line of the same form: the byte there (8 bits), the byte after it (8),
# how many bytes agreed up to here (8), and in 8 bits the number of marks in the line, or the latest mark.
ABOVE, ALIKE = 0, 1
MARKS = 2  # the latest eight bytes that are marks
CELL_KEY = 3  # hash of the cell so far and the key
CELL_PLACE = 4  # hash of the cell so far and its number in the line
NUMBER = 5  # digit by the last difference (8 bits), digit of the last value (8), which agree (4), digits so far (4)
KEY = 6  # hash of the word before the latest colon or equals sign, in the innermost open bracket
UP = 7  # hash of the whole cell above: the one with the same number in the line above
_START, _OVER, _LIKE, SHAPE, _IN_WORD, _WORD = range(8, 14)  # SHAPE: hash of the form of the line
_CELL, LENGTH, CELLS = range(14, 17)  # LENGTH: bytes of the cell so far; CELLS: whole cells of the line
_VALUE, _DIGITS, _ROW = range(17, 20)
_QUOTED, _BEFORE, _DEPTH = range(20, 23)  # whether the next byte is in a string; the last byte; open brackets
_KEYS = 23  # those of the innermost open brackets
_DEEPEST = 16  # brackets whose keys are remembered
_OWN = _KEYS + _DEEPEST  # hashes of the first whole cells of this line, then of the line above
_LINE_CELLS = 16
REGISTERS = _OWN + 2 * _LINE_CELLS

_NEWLINE, _QUOTE, _BACKSLASH = 10, 34, 92
_RUN = 256  # stands for a word in the hash of a line's form
_REACH = 256  # bytes in which a mark is searched in the line above
_MOST = np.uint64(255)
_MOST_DIGITS = 18
_ALL_AGREE = 3
PLACES = 1 << 16  # rows of `places`
NUMBERS = 1 << 12  # rows of `numbers`
_POWERS = np.array([10**n for n in range(_MOST_DIGITS + 1)], np.int64)


def _bytes_table(*members: range) -> np.ndarray:
    table = np.zeros(256, np.bool_)
    for member in members:
        table[member.start : member.stop] = True
    return table


_IS_WORD = _bytes_table(range(48, 58), range(65, 91), range(95, 96), range(97, 123), range(128, 256))
ENDS_CELL = np.isin(np.arange(256), [*b'\n\t ",;|'])


@inline
def update_byte(f, places, numbers, data, position, with_above=True):
    """Update the registers after the byte data[position - 1].

    Args:
        f: uint64 [REGISTERS].
        places: int32 [PLACES], where the byte after a form of line was last.
        numbers: int64 [NUMBERS, 3], the last value of a number, its last difference, and its digits. With fewer rows,
            NUMBER stays 0.
        data: The block.
        position: The number of bytes so far.
        with_above: Whether ABOVE is updated, which takes half of the time.
    """
    byte = np.int64(data[position - 1])
    if with_above:
        _update_above(f, data, position)
    like = np.int64(f[_LIKE])
    alike = _counted(f[ALIKE], like > 0 and np.int64(data[like]) == byte)
    mark = f[ALIKE] >> np.uint64(24)
    if _IS_WORD[byte]:
        like = _in_word(f, places, data, position, like)
    else:
        mark = np.uint64(byte)
        like = _at_mark(f, places, position, byte)
    f[_LIKE] = np.uint64(like)
    f[ALIKE] = (alike << np.uint64(16)) | (mark << np.uint64(24))
    if like > 0:
        f[ALIKE] |= np.uint64(data[like]) | (np.uint64(data[min(like + 1, position - 1)]) << np.uint64(8))
    f[_BEFORE] = np.uint64(byte)
    _update_cell(f, byte)
    if numbers.shape[0] == NUMBERS:
        _update_number(f, numbers, byte)


@inline
def place_of(f):
    """Return the place of the next byte, 8 bits: the number of its cell, and how many bytes of the cell are known."""
    return np.int64(f[CELLS] & np.uint64(15)) * 16 + np.int64(min(f[LENGTH], np.uint64(15)))


@inline
def _update_above(f, data, position):
    """Update the place in the line above."""
    byte = np.int64(data[position - 1])
    start, over, marks = np.int64(f[_START]), np.int64(f[_OVER]), f[ABOVE] >> np.uint64(24)
    agreed = _counted(f[ABOVE], over < start and np.int64(data[over]) == byte)
    if _IS_WORD[byte]:
        over += np.int64(over < start and _IS_WORD[data[over]])
    elif byte == _NEWLINE:
        over, start, marks = start, position, np.uint64(0)
    else:
        over = _after_mark(data, over, start, byte)
        marks = min(marks + np.uint64(1), _MOST)
    f[_START], f[_OVER] = np.uint64(start), np.uint64(over)
    f[ABOVE] = _expected(data, over, start) | (agreed << np.uint64(16)) | (marks << np.uint64(24))


@inline
def _in_word(f, places, data, position, like):
    """Update the form of the line and the word after a byte of it, and return the place in the line of that form."""
    if f[_IN_WORD] == np.uint64(0):
        f[_WORD] = np.uint64(0)
        f[SHAPE] = mix_hash(f[SHAPE], np.uint64(_RUN))
        like = _look_up(f, places, position)
    elif like > 0 and _IS_WORD[data[like]]:
        like += 1
    f[_WORD] = mix_hash(f[_WORD], np.uint64(data[position - 1]))
    f[_IN_WORD] = np.uint64(1)
    return like


@inline
def _at_mark(f, places, position, byte):
    """Update marks, key and form of the line after a mark, and return the place in the line of that form."""
    f[_IN_WORD] = np.uint64(0)
    if byte == _NEWLINE:
        f[SHAPE] = np.uint64(0)
        f[_QUOTED] = np.uint64(0)
    else:
        f[MARKS] = (f[MARKS] << np.uint64(8)) | np.uint64(byte)
        f[SHAPE] = mix_hash(f[SHAPE], np.uint64(byte))
        _update_key(f, byte)
    return _look_up(f, places, position)


@inline
def _update_key(f, byte):
    """Update the key, and whether the next byte is in a string, after a mark.

    Colons in strings make no keys. A closed bracket restores the key before it.
    """
    depth = f[_DEPTH]
    if byte == _QUOTE:
        f[_QUOTED] ^= np.uint64(f[_BEFORE] != np.uint64(_BACKSLASH))
    elif f[_QUOTED] == np.uint64(0):
        if byte in (58, 61):
            f[KEY] = f[_WORD]
        elif byte in (91, 123):
            if depth < np.uint64(_DEEPEST):
                f[np.uint64(_KEYS) + depth], f[KEY] = f[KEY], np.uint64(0)
            f[_DEPTH] += np.uint64(1)
        elif byte in (93, 125) and depth > np.uint64(0):
            f[_DEPTH] -= np.uint64(1)
            if depth <= np.uint64(_DEEPEST):
                f[KEY] = f[np.uint64(_KEYS - 1) + depth]


@inline
def _look_up(f, places, position):
    """Return the last place of the line's form, and note this one."""
    row = f[SHAPE] >> np.uint64(48)
    like = np.int64(places[row])
    places[row] = position
    return like


@inline
def _counted(register, agrees):
    """Return one more than the count of bytes that agreed, or 0."""
    return min(((register >> np.uint64(16)) & _MOST) + np.uint64(1), _MOST) if agrees else np.uint64(0)


@inline
def _after_mark(data, over, start, byte):
    """Return the place after the next such mark in the line above, or `over` without such a mark."""
    place, end = over, min(start, over + _REACH)
    while place < end and np.int64(data[place]) != byte:
        place += 1
    return place + 1 if place < end else over


@inline
def _expected(data, over, start):
    """Return the byte at a place of the line above, and the one after it above it; both are a newline after its end."""
    first = np.uint64(data[over]) if over < start else np.uint64(_NEWLINE)
    second = np.uint64(data[over + 1]) if over + 1 < start else np.uint64(_NEWLINE)
    return first | (second << np.uint64(8))


@inline
def _update_cell(f, byte):
    """Update what is known of the cell: bytes between blanks, commas, semicolons, bars and quotation marks."""
    if ENDS_CELL[byte]:
        _end_cell(f, byte)
        f[LENGTH] = np.uint64(0)
        f[_CELL] = np.uint64(byte)
    else:
        f[_CELL] = mix_hash(f[_CELL], np.uint64(byte))
        f[LENGTH] += np.uint64(1)
    f[CELL_KEY] = mix_hash(f[_CELL], f[KEY])
    f[CELL_PLACE] = mix_hash(f[_CELL], f[CELLS])


@inline
def _end_cell(f, byte):
    """Note the hash of a whole cell, and show the one above the next cell."""
    number = f[CELLS]
    if f[LENGTH] > np.uint64(0):
        if number < np.uint64(_LINE_CELLS):
            f[np.uint64(_OWN) + number] = f[_CELL]
        number += np.uint64(1)
    if byte == _NEWLINE:
        for k in range(_OWN, _OWN + _LINE_CELLS):
            f[k + _LINE_CELLS], f[k] = f[k], np.uint64(0)
        number = np.uint64(0)
    f[CELLS] = number
    f[UP] = f[np.uint64(_OWN + _LINE_CELLS) + number] if number < np.uint64(_LINE_CELLS) else np.uint64(0)


@inline
def _update_number(f, numbers, byte):
    """Update the digits that the last number of this form of line, and its last difference, lead one to expect."""
    value, digits = np.int64(f[_VALUE]), np.int64(f[_DIGITS])
    if 48 <= byte <= 57:
        if digits < _MOST_DIGITS:
            value = value * 10 + byte - 48
            digits += 1
    else:
        if digits > 0:
            row = f[_ROW]
            numbers[row, 1] = value - numbers[row, 0] if numbers[row, 2] > 0 else 0
            numbers[row, 0], numbers[row, 2] = value, digits
        value, digits = np.int64(0), np.int64(0)
        f[_ROW] = mix_hash(f[SHAPE], f[KEY]) >> np.uint64(52)
    f[_VALUE], f[_DIGITS] = np.uint64(value), np.uint64(digits)
    last, step, width = numbers[f[_ROW], 0], numbers[f[_ROW], 1], numbers[f[_ROW], 2]
    f[NUMBER] = np.uint64(0)
    if width > 0:
        guess = max(last + step, 0)
        wide = width + np.int64(guess >= _POWERS[width] and width < _MOST_DIGITS)
        agree = np.int64(_head(guess, wide, digits) == value) + 2 * np.int64(_head(last, width, digits) == value)
        agree = agree if digits > 0 else _ALL_AGREE
        shown = _digit(guess, wide, digits) | (_digit(last, width, digits) << 8)
        f[NUMBER] = np.uint64(shown | (agree << 16) | (min(digits, 15) << 20))


@inline
def _head(value, width, digits):
    """Return the first digits of a value, which has `width` digits, as a number."""
    return value // _POWERS[max(width - digits, 0)]


@inline
def _digit(value, width, digits):
    """Return the character after the first digits of a value, or a colon after its end."""
    return 48 + _head(value, width, digits + 1) % 10 if digits < width else 58
