"""Sums of bits: by class of byte, line, column of a table, and section of a program or safetensors file."""

import io
import re
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from squeeze.checkpoint import safetensors
from squeeze.errors import SqueezeError

__all__ = [
    "Lines",
    "Section",
    "Separated",
    "Span",
    "Total",
    "by_class",
    "by_line",
    "by_place",
    "by_section",
    "sections_of",
    "separated",
]

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
    """A number of bytes and their bits."""

    size: int
    bits: float

    @property
    def bits_per_byte(self) -> float:
        return self.bits / self.size if self.size else 0.0


class Lines(NamedTuple):
    """Start, end and bits of each line of a text; a line includes its line end."""

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
    """Return the total of each class of byte that occurs, from uint8 data and float64 bits of each byte."""
    kinds = _TABLE[data]
    begins = kinds == _LATER
    begins[1:] &= kinds[:-1] != _LATER
    kinds[begins] = _FIRST
    sizes, sums = np.bincount(kinds, minlength=len(CLASSES)), np.bincount(kinds, bits, len(CLASSES))
    return {name: Total(int(sizes[i]), float(sums[i])) for i, name in enumerate(CLASSES) if sizes[i]}


def by_line(data: np.ndarray, bits: np.ndarray, offset: int) -> Lines:
    """Return the lines of uint8 data that begin at byte `offset` of the file, with the bits of each."""
    ends = np.flatnonzero(data == 10) + 1
    if data.size and (ends.size == 0 or ends[-1] < data.size):
        ends = np.append(ends, data.size)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)[: ends.size]
    sums = np.concatenate([[0.0], np.cumsum(bits)])
    return Lines(starts + offset, ends + offset, sums[ends] - sums[starts])


_SEPARATORS = b",;\t|"
_LINES = 8  # fewer are no table
_ALIKE = 0.9  # of the lines, that have as many fields as most
_NUMBER = re.compile(r"[-+.\d][-+.\deE%]*")


class Separated(NamedTuple):
    """A text as columns; a field includes the separator or line end after it."""

    separator: str
    names: tuple[str, ...]  # of the first line, where those are names
    columns: np.ndarray  # int64: the column of each byte

    def by_column(self, bits: np.ndarray) -> dict[str, Total]:
        """Return the total of each column, from float64 bits of each byte."""
        sizes, found = np.bincount(self.columns), np.bincount(self.columns, bits)
        named = [*self.names, *(f"column {i + 1}" for i in range(len(self.names), len(sizes)))]
        return {
            name: Total(int(size), float(sum_)) for name, size, sum_ in zip(named, sizes, found, strict=True) if size
        }


def separated(data: np.ndarray) -> Separated | None:
    """Return the columns of uint8 data that start at a line, or None if the lines are not rows of a table.

    Separators and line ends in double quotes do not count (RFC 4180).
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
    """Return the fields of the first line if they are distinct and none is a number, else an empty tuple."""
    fields = [field.strip().strip('"') for field in line.split(separator)]
    if len(fields) != count or len(set(fields)) != count:
        return ()
    return () if any(not field or _NUMBER.fullmatch(field) for field in fields) else tuple(fields)


class Span(NamedTuple):
    """A binary table, or a part of one."""

    begin: int  # in the bits
    end: int
    record: int  # bytes of a record
    place: int  # in its record, of the first byte


def by_place(bits: np.ndarray, spans: Sequence[Span]) -> dict[str, Total]:
    """Return the total of each byte of the records, over all tables."""
    sums: dict[str, Total] = {}
    for begin, end, width, first in spans:
        places = (np.arange(end - begin) + first) % width
        for place, (size, found) in enumerate(
            zip(np.bincount(places, minlength=width), np.bincount(places, bits[begin:end], width), strict=True)
        ):
            before = sums.get(name := f"byte {place} of {width}", Total(0, 0.0))
            sums[name] = Total(before.size + int(size), before.bits + float(found))
    return sums


BETWEEN, AROUND = "header and gaps", "around wrappers"  # bytes outside of all sections
# Of 64-bit files and of 32-bit ones, where the ELF header says where the table of sections lies, and how large it is;
# and of its rows name, kind, flags, address, offset and size.
_HEADERS = {2: ("40xQ10xHHH", "IIQQQQ"), 1: ("32xI10xHHH", "IIIIII")}
_ORDERS = {1: "<", 2: ">"}
_NOTHING = (0, 8)  # kinds of sections of which the file holds no bytes


class Section(NamedTuple):
    """The bytes of a file from `start` to `end`, with a name."""

    name: str
    start: int
    end: int


def sections_of(data: bytes) -> tuple[Section, ...]:
    """Return the sections of an ELF or safetensors file in order, without those that overlap an earlier one.

    The result is empty for other formats and damaged headers.
    """
    found = _elf(data) if data.startswith(b"\x7fELF") else _safetensors(data)
    kept: list[Section] = []
    for section in sorted(found, key=lambda section: (section.start, -section.end)):
        if section.start < section.end <= len(data) and (not kept or section.start >= kept[-1].end):
            kept.append(section)
    return tuple(kept)


def by_section(sections: Iterable[Section], bits: np.ndarray, begin: int, others: str = BETWEEN) -> dict[str, Total]:
    """Return the total of each section, and of all other bytes; sections of one name are added up.

    Args:
        sections: Sections of the file.
        bits: float64, of each byte from `begin` on.
        begin: Offset of the first byte.
        others: The name of the bytes outside of all sections.
    """
    along = np.concatenate([[0.0], np.cumsum(bits)])
    found: dict[str, Total] = {}
    size, total = 0, 0.0
    for name, start, end in sections:
        first, last = (min(max(place - begin, 0), bits.size) for place in (start, end))
        if first < last:
            before, cost = found.get(name, Total(0, 0.0)), float(along[last] - along[first])
            found[name] = Total(before.size + last - first, before.bits + cost)
            size, total = size + last - first, total + cost
    if found and size < bits.size:
        found[others] = Total(bits.size - size, float(along[-1]) - total)
    return found


def _elf(data: bytes) -> list[Section]:
    """Return the sections in the section header table of an ELF file (System V ABI, chapter 4)."""
    try:
        header, row = (_ORDERS[data[5]] + form for form in _HEADERS[data[4]])
        place, width, count, names = struct.unpack_from(header, data)
        rows = [struct.unpack_from(row, data, place + i * width) for i in range(count)]
        strings = rows[names][4]
        return [
            Section(data[strings + name : data.index(0, strings + name)].decode(errors="replace"), start, start + size)
            for name, kind, _, _, start, size in rows
            if kind not in _NOTHING
        ]
    except (KeyError, IndexError, ValueError, struct.error):
        return []


def _safetensors(data: bytes) -> list[Section]:
    try:
        header = safetensors.read_header(io.BytesIO(data), len(data))
        tensors = safetensors.parse(Path(), len(data), header).tensors
    except SqueezeError:
        return []
    return [Section(tensor.name, tensor.begin, tensor.end) for tensor in tensors]
