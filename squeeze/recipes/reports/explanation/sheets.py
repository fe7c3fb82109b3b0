"""Sums of bits over a spreadsheet in BIFF (.xls): the values of each column, and what is around them.

The records are those of "[MS-XLS]: Excel Binary File Format", and of earlier versions. They are followed from the first
one on, within the sectors of the file as they lie.
"""

from collections.abc import Iterator

import numpy as np

from squeeze.recipes.reports.explanation.sums import Total

__all__ = ["by_column"]

_FIRST = b"\t\x08\x10\0", b"\t\x08\x08\0", b"\t\0\4\0", b"\t\2\6\0", b"\t\4\6\0"  # type and length
_COMPOUND = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # a file of sectors, in which the records are
_OLD = range(1, 7)  # cells of BIFF 2, whose format has three bytes
_CELLS = {0xD6, 0xFD, *range(0x201, 0x207), 0x27E, 0x406}
_SEVERAL = {0xBD: 6, 0xBE: 2}  # records of several cells, and the bytes of each
_NAMES = {0xFC: "strings", 0x3C: "strings", 0xFF: "strings", 0x208: "rows", 8: "rows"}
_PLACES, _OTHERS, _OUTSIDE = "types and places of cells", "other records", "outside of records"
_LETTERS = 26


def by_column(data: bytes, bits: np.ndarray) -> dict[str, Total]:
    """Return the totals of a spreadsheet by column, then those of other bytes; empty for other files.

    Args:
        data: the file.
        bits: float64 [n], of each byte.
    """
    begin = min((at for first in _FIRST if (at := data.find(first)) >= 0), default=-1)
    if begin < 0 or not (begin == 0 or data.startswith(_COMPOUND)):
        return {}
    along = np.concatenate([[0.0], np.cumsum(bits)])
    columns: dict[int, Total] = {}
    others: dict[str, Total] = {}
    done = begin
    for start, end, column in _parts(data, begin):
        size, cost = end - start, float(along[end] - along[start])
        if isinstance(column, int):
            before = columns.get(column, Total(0, 0.0))
            columns[column] = Total(before.size + size, before.bits + cost)
        else:
            before = others.get(column, Total(0, 0.0))
            others[column] = Total(before.size + size, before.bits + cost)
        done = end
    if not columns:
        return {}
    outside = Total(begin + len(data) - done, float(along[begin] + along[-1] - along[done]))
    named = {f"column {_letters(column)}": columns[column] for column in sorted(columns)}
    return named | others | ({_OUTSIDE: outside} if outside.size else {})


def _parts(data: bytes, place: int) -> Iterator[tuple[int, int, int | str]]:
    """Yield start, end and column of values, and the same with a name of other bytes, in order."""
    while place + 4 <= len(data):
        kind, end = _number(data, place), place + 4 + _number(data, place + 2)
        if end > len(data):
            return
        value = place + (11 if kind in _OLD else 10)
        if kind in _SEVERAL and value <= end:
            first, width = _number(data, place + 6), _SEVERAL[kind]
            yield place, place + 8, _PLACES
            last = place + 8 + (end - place - 10) // width * width
            for column, start in enumerate(range(place + 8, last, width), first):
                yield start, start + width, column
            yield last, end, _PLACES
        elif (kind in _OLD or kind in _CELLS) and value <= end:
            yield place, value, _PLACES
            yield value, end, _number(data, place + 6)
        else:
            yield place, end, _NAMES.get(kind, _OTHERS)
        place = end


def _number(data: bytes, place: int) -> int:
    return data[place] | data[place + 1] << 8


def _letters(column: int) -> str:
    """Return the name of a column, from A for 0 on."""
    name = ""
    while column >= 0:
        column, letter = divmod(column, _LETTERS)
        name, column = chr(ord("A") + letter) + name, column - 1
    return name
