"""Sums of bits by what bytes are: the words, marks and lines of a text."""

from typing import NamedTuple

import numpy as np

CLASSES = (
    "first letters of words",
    "later letters of words",
    "digits",
    "blanks",
    "line ends",
    "marks",
    "bytes beyond ASCII",
    "control bytes",
)
_FIRST, _LATER, _DIGITS, _BLANKS, _ENDS, _MARKS, _BEYOND, _CONTROL = range(len(CLASSES))


class Total(NamedTuple):
    """Bytes, and the bits that they cost."""

    size: int
    bits: float

    @property
    def bits_per_byte(self) -> float:
        return self.bits / max(self.size, 1)


class Lines(NamedTuple):
    """Arrays of the lines of a text; a line ends after its line end."""

    starts: np.ndarray  # int64 [n]
    ends: np.ndarray  # int64 [n]
    bits: np.ndarray  # float64 [n]


def _class_table() -> np.ndarray:
    table = np.full(256, _CONTROL, np.uint8)
    table[33:127] = _MARKS
    table[128:] = _BEYOND
    for letters, kind in ((b"0123456789", _DIGITS), (b" \t", _BLANKS), (b"\n\r", _ENDS)):
        table[list(letters)] = kind
    for first, last in ("az", "AZ"):
        table[ord(first) : ord(last) + 1] = _LATER
    return table


_TABLE = _class_table()


def by_class(data: np.ndarray, bits: np.ndarray) -> dict[str, Total]:
    """Of uint8 data and float64 bits of the same size, the classes that there are."""
    kinds = _TABLE[data]
    begins = kinds == _LATER
    begins[1:] &= kinds[:-1] != _LATER
    kinds[begins] = _FIRST
    sizes, sums = np.bincount(kinds, minlength=len(CLASSES)), np.bincount(kinds, bits, len(CLASSES))
    return {name: Total(int(sizes[i]), float(sums[i])) for i, name in enumerate(CLASSES) if sizes[i]}


def lines(data: np.ndarray, bits: np.ndarray, offset: int) -> Lines:
    """Of uint8 data that begins at this byte of the file, and float64 bits of the same size."""
    ends = np.flatnonzero(data == 10) + 1
    if data.size and (ends.size == 0 or ends[-1] < data.size):
        ends = np.append(ends, data.size)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)[: ends.size]
    sums = np.concatenate([[0.0], np.cumsum(bits)])
    return Lines(starts + offset, ends + offset, sums[ends] - sums[starts])
