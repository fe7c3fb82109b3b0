"""Sums of bits by column: of text whose lines are fields with a separator between, as CSV, and of binary tables."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from squeeze.recipes.reports.explanation.totals import Total

__all__ = ["Separated", "Span", "of_records", "separated"]

_SEPARATORS = b",;\t|"
_LINES = 8  # fewer are no table
_ALIKE = 0.9  # of the lines, that have as many fields as most
_NUMBER = re.compile(r"[-+.\d][-+.\deE%]*")


class Separated(NamedTuple):
    """Text in fields. A field takes the separator or line end behind it."""

    separator: str
    names: tuple[str, ...]  # of the first line, where those are names
    columns: np.ndarray  # int64: the column of each byte

    def sums(self, bits: np.ndarray) -> dict[str, Total]:
        """Of float64 bits of the bytes."""
        sizes, found = np.bincount(self.columns), np.bincount(self.columns, bits)
        named = [*self.names, *(f"column {i + 1}" for i in range(len(self.names), len(sizes)))]
        return {
            name: Total(int(size), float(sum_)) for name, size, sum_ in zip(named, sizes, found, strict=True) if size
        }


def separated(data: np.ndarray) -> Separated | None:
    """The fields of uint8 `data`, from the start of a line on; None where lines are no rows of a table.

    What stands between double quotes has no separators and no line ends (RFC 4180).
    """
    quoted = np.cumsum(data == 34) % 2 == 1
    ends = (data == 10) & ~quoted
    lines = np.cumsum(ends) - ends  # of each byte
    if not data.size or lines[-1] + 1 < _LINES:
        return None
    best: tuple[int, np.ndarray] | None = None
    for separator in _SEPARATORS:
        here = (data == separator) & ~quoted
        counts = np.bincount(lines, here).astype(np.int64)
        most = int(np.bincount(counts).argmax())
        if most and (counts == most).mean() >= _ALIKE and (best is None or most > best[0]):
            before = np.cumsum(here) - here
            begins = before[np.flatnonzero(np.diff(lines, prepend=-1))]  # at the start of each line
            best = most, np.minimum(before - begins[lines], most)
            found = chr(separator)
    if best is None:
        return None
    return Separated(found, _names(bytes(data[lines == 0]).decode(errors="replace"), found, best[0] + 1), best[1])


def _names(line: str, separator: str, count: int) -> tuple[str, ...]:
    """The fields of a first line where each is a name, and all differ; else none."""
    fields = [field.strip().strip('"') for field in line.split(separator)]
    if len(fields) != count or len(set(fields)) != count:
        return ()
    return () if any(not field or _NUMBER.fullmatch(field) for field in fields) else tuple(fields)


class Span(NamedTuple):
    """A table, or a part of one."""

    begin: int  # in the bits
    end: int
    record: int  # bytes of a record
    place: int  # in its record, of the first byte


def of_records(bits: np.ndarray, spans: Sequence[Span]) -> dict[str, Total]:
    """Of float64 bits: sums by place in the record."""
    sums: dict[str, Total] = {}
    for begin, end, width, first in spans:
        places = (np.arange(end - begin) + first) % width
        for place, (size, found) in enumerate(
            zip(np.bincount(places, minlength=width), np.bincount(places, bits[begin:end], width), strict=True)
        ):
            before = sums.get(name := f"byte {place} of {width}", Total(0, 0.0))
            sums[name] = Total(before.size + int(size), before.bits + float(found))
    return sums
