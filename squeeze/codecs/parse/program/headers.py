"""Symbols and section headers of ELF, whose fields mostly follow from the ones before.

The name of a symbol begins where that of the one before ends, and so do the bytes of a section. Both are replaced by
differences from there. See the System V ABI, chapter 4.
"""

import numpy as np

from squeeze.codecs.parse.program.numbers import big, put, put_big, word
from squeeze.numerics.jit import inline, kernel

__all__ = ["headers", "names", "rows"]

_LOW = 0xFFFFFFFF
_MOST_STEPS = 4  # letters that are read for each byte of the strings
_EMPTY, _ADDENDS, _PLACES = 8, 4, 9  # types of sections: without bytes, and relocations


def rows(table: np.ndarray, row: int, is_big: bool, forward: bool) -> None:
    """Replace the first 4 bytes of rows by the difference from those of the row above, or undo it, in place.

    Args:
        table: uint8 [n].
        row: bytes of a row, at least 4.
        is_big: whether the highest byte comes first.
        forward: whether they become differences.
    """
    _difference(table, row, is_big, forward)


def names(table: np.ndarray, strings: np.ndarray, row: int, is_big: bool, forward: bool) -> None:
    """Replace the places of symbols' names, or undo it, in place.

    They become differences, plus 1, from the end of the name before. 0 stays 0, and the place whose number would be 0
    gets the number that 0 would have.

    Args:
        table: uint8 [n], rows of symbols.
        strings: uint8, the names.
        row: bytes of a row.
        is_big: whether the highest byte comes first.
        forward: whether they become differences.
    """
    _names(table, strings, row, is_big, forward)


def headers(table: np.ndarray, row: int, is_big: bool, forward: bool) -> None:
    """Replace the places of sections by differences from where those before end, or undo it, in place.

    Relocations follow each other, and so do all other sections. The section that relocations are for becomes the
    distance from theirs.

    Args:
        table: uint8 [n], rows of section headers.
        row: bytes of a row, 40 or 64.
        is_big: whether the highest byte comes first.
        forward: whether they become differences.
    """
    _headers(table, row, is_big, forward)


@inline
def _get(table, at, is_big):
    return big(table, at) if is_big else word(table, at)


@inline
def _put(table, at, value, is_big):
    if is_big:
        put_big(table, at, value)
    else:
        put(table, at, value, 4)


@kernel
def _difference(table, row, is_big, forward):
    before = np.int64(0)
    for at in range(0, table.size - 3, row):
        value = _get(table, at, is_big)
        if not forward:
            value = (value + before) & _LOW
        _put(table, at, value - before if forward else value, is_big)
        before = value


@kernel
def _names(table, strings, row, is_big, forward):
    last, left = np.int64(0), _MOST_STEPS * strings.size
    for at in range(0, table.size - 3, row):
        expected = last
        while expected < strings.size and strings[expected] and left > 0:
            expected += 1
            left -= 1
        expected += 1
        number, of_zero = _get(table, at, is_big), (1 - expected) & _LOW
        if forward:
            value = number
            number = (value - expected + 1) & _LOW
            if value == 0:
                number = np.int64(0)
            elif number == 0:
                number = of_zero
            _put(table, at, number, is_big)
        else:
            value = (number + expected - 1) & _LOW
            if number == 0:
                value = np.int64(0)
            elif number == of_zero:
                value = (expected - 1) & _LOW
            _put(table, at, value, is_big)
        if value:
            last = value


@kernel
def _headers(table, row, is_big, forward):
    high = 4 if is_big and row == 64 else 0  # bytes before the low ones of a field of 8
    place, size, align, of = 16, 20, 32, 28
    if row == 64:
        place, size, align, of = 24 + high, 32 + high, 48 + high, 44
    end, end_of_relocations = np.int64(0), np.int64(0)
    for number in range(table.size // row):
        at = number * row
        kind, step = _get(table, at + 4, is_big), max(_get(table, at + align, is_big), 1)
        is_relocations = kind in (_ADDENDS, _PLACES)
        expected = (end_of_relocations if is_relocations else end) + step - 1
        expected -= expected % step
        value = _get(table, at + place, is_big)
        if not forward:
            value = (value + expected) & _LOW
        _put(table, at + place, value - expected if forward else value, is_big)
        after = value + (0 if kind == _EMPTY else _get(table, at + size, is_big))
        if is_relocations:
            _put(table, at + of, number - _get(table, at + of, is_big), is_big)
            end_of_relocations = after
        else:
            end = after
