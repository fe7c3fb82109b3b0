"""Executables of Android (DEX) as wrappers, whose content has their names as a text, and tables of numbers.

Where names are follows from their lengths, and these from the names. Checksums follow from the file. All are left out.
See the Dalvik executable format of the Android Open Source Project.
"""

import hashlib
import io
import re
import struct
import zlib
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from squeeze.codecs.content import Content, Region
from squeeze.codecs.parse.protocol import Found, Wrapper
from squeeze.codecs.parse.room import Room
from squeeze.errors import DamagedError, SqueezeError
from squeeze.system.binary import read_varint, varint

__all__ = ["Dex"]

_MAGIC, _SUMS, _HEADER = b"dex\n", 8, 112  # the content is without the magic, and the 24 bytes of checksums
_NUMBERS = struct.Struct("<20I")  # the rest of the header: sizes and places
_ORDER = 0x12345678
# Types, prototypes, fields, methods and classes: the form of a row, and the number in it that ascends, if any.
_TABLES = (("<u4", "f0"), ("<u4,<u4,<u4", "f1"), ("<u2,<u2,<u4", "f0"), ("<u2,<u2,<u4", "f0"), ("V32", ""))
_FORMS = tuple((np.dtype([("f0", form)] if "," not in form else form), column) for form, column in _TABLES)
_NAMES = ("header", "types", "prototypes", "fields", "methods", "classes", "code", "names")
_NEWLINES = bytes.maketrans(b"\0\n", b"\n\0")  # names end with a newline
_LEAST = 1 << 9  # bytes of a file that pays
_MOST_NAMES = 1 << 20
_MORE_BYTES = np.array([1 << bits for bits in range(7, 35, 7)], np.int64)  # lengths from which on a varint has one more
_PROOF = 8  # times as long as reading a file: to take it apart and to close it


class _Layout(NamedTuple):
    """A header.

    Attributes:
        size: Bytes of the file.
        names: How many names it has. Their places are behind the header.
        rows: How many rows each table of _TABLES has. The tables are behind these places.
    """

    size: int
    names: int
    rows: tuple[int, ...]

    @property
    def sizes(self) -> list[int]:
        """Return the bytes of each table."""
        return [rows * form.itemsize for rows, (form, _) in zip(self.rows, _FORMS, strict=True)]

    @property
    def end(self) -> int:
        """Return where the tables end."""
        return _HEADER + 4 * self.names + sum(self.sizes)


class Dex(Wrapper):
    """A Dalvik executable of one file, versions 030 to 049."""

    kind = 31
    name = "Android executable"
    mark = re.compile(rb"dex\n0[34]\d\0")
    is_certain = True
    least_copied = 0.1

    def open(self, data: bytes, start: int, room: Room) -> Found | None:
        raw = b""
        try:
            layout = _layout(data[start : start + _HEADER])
            raw = data[start : start + layout.size]
            content, extra = _split(raw, layout)
            is_proven = _join(content, extra) == raw
        except SqueezeError:
            is_proven = False
        if not is_proven or len(raw) < _LEAST or len(content) > room.content:
            room.spend(_PROOF * len(raw))
            return None
        regions = _regions(_places(len(content), extra, layout))
        return Found(self.kind, start, len(raw), np.frombuffer(content, np.uint8), None, extra, None, regions)

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        return np.frombuffer(_join(content.tobytes(), extra), np.uint8)

    def segments(self, content: np.ndarray, extra: bytes) -> list[tuple[int, int, str]]:
        spans = pairwise(_places(content.size, extra, _layout(_head(content.tobytes()))))
        return [(*span, name) for span, name in zip(spans, _NAMES, strict=True) if span[0] < span[1]]


def _head(content: bytes) -> bytes:
    """Return the header of a content, with zeros in place of the checksums."""
    before = _SUMS - len(_MAGIC)
    return _MAGIC + content[:before] + bytes(24) + content[before : _HEADER - 24 - len(_MAGIC)]


def _layout(head: bytes) -> _Layout:
    """Return what a header says.

    Raises:
        DamagedError: if its tables are not one behind the other.
    """
    if len(head) < _HEADER:
        raise _impossible()
    size, header, order, _, _, _, names, at, *numbers = _NUMBERS.unpack_from(head, _HEADER - _NUMBERS.size)
    layout = _Layout(size, names, tuple(numbers[:10:2]))
    if (header, order, at) != (_HEADER, _ORDER, _HEADER) or layout.end > size or names > _MOST_NAMES:
        raise _impossible()
    at += 4 * names
    for place, rows, length in zip(numbers[1:10:2], layout.rows, layout.sizes, strict=True):
        if rows and place != at:
            raise _impossible()
        at += length
    return layout


def _split(raw: bytes, layout: _Layout) -> tuple[bytes, bytes]:
    """Return the content of a file and what closes it.

    Raises:
        DamagedError: if it ends too early.
    """
    first = at = int.from_bytes(raw[_HEADER : _HEADER + 4], "little")
    if len(raw) < layout.size or first < layout.end:
        raise _impossible()
    names = bytearray()
    for _ in range(layout.names):
        while raw[at : at + 1] > b"\x7f":
            at += 1
        end = raw.find(b"\0", at + 1)
        if end < 0:
            raise _impossible()
        names += raw[at + 1 : end + 1]
        at = end + 1
    tables, place = b"", layout.end - sum(layout.sizes)
    for number, size in enumerate(layout.sizes):
        tables += _table(raw[place : place + size], number)
        place += size
    sums = raw[_SUMS : _SUMS + 24]
    extra = varint(first - layout.end) + varint(len(names)) + (b"" if _sums(raw) == sums else sums)
    head = raw[len(_MAGIC) : _SUMS] + raw[_SUMS + 24 : _HEADER]
    return head + tables + raw[layout.end : first] + raw[at:] + names.translate(_NEWLINES), extra


def _join(content: bytes, extra: bytes) -> bytes:
    """Return the file that a content is of.

    Raises:
        DamagedError: if it is impossible.
    """
    head = _head(content)
    layout = _layout(head)
    places = _places(len(content), extra, layout)
    file = io.BytesIO(extra)
    before, _, sums = read_varint(file)[0], read_varint(file)[0], file.read()
    names, starts = _with_lengths(content[places[-2] :].translate(_NEWLINES), layout.names)
    data = content[places[-3] : places[-2]]
    if layout.end + len(data) + len(names) != layout.size or len(sums) not in (0, 24):
        raise _impossible()
    tables = [_table(content[begin:end], k, is_coded=True) for k, (begin, end) in enumerate(pairwise(places[1:-2]))]
    ats = (starts + (layout.end + before)).astype("<u4").tobytes()
    out = b"".join([head, ats, *tables, data[:before], names, data[before:]])
    return out[:_SUMS] + (sums or _sums(out)) + out[_SUMS + 24 :]


def _with_lengths(names: bytes, count: int) -> tuple[bytes, np.ndarray]:
    """Return names with the number of UTF-16 units before each, and where each begins, int64 [count].

    Raises:
        DamagedError: if there are more or fewer names.
    """
    units = np.frombuffer(names, np.uint8)
    ends = np.flatnonzero(units == 0)
    if ends.size != count or (units.size and units[-1]):
        raise _impossible()
    before = np.zeros(count + 1, np.int64)
    before[1:] = np.cumsum(units & 0xC0 != 0x80, dtype=np.uint32)[ends]
    lengths = before[1:] - before[:-1] - 1
    sizes = 1 + np.searchsorted(_MORE_BYTES, lengths, "right")
    starts = np.cumsum(sizes) - sizes
    starts[1:] += ends[:-1] + 1
    out, is_name = np.empty(units.size + int(sizes.sum()), np.uint8), np.ones(units.size + int(sizes.sum()), np.bool_)
    for k in range(int(sizes.max(initial=0))):
        has = sizes > k
        at = starts[has] + k
        out[at] = lengths[has] >> 7 * k & 127 | (sizes[has] > k + 1) << 7
        is_name[at] = False
    out[is_name] = units
    return out.tobytes(), starts


def _table(raw: bytes, number: int, is_coded: bool = False) -> bytes:
    """Return a table with the differences of its number that ascends, or undo this."""
    form, column = _FORMS[number]
    table = np.frombuffer(raw, form).copy()
    if column:
        values = table[column]
        table[column] = np.cumsum(values, dtype=values.dtype) if is_coded else np.diff(values, prepend=values[:1] * 0)
    return table.tobytes()


def _places(size: int, extra: bytes, layout: _Layout) -> list[int]:
    """Return where the parts of a content begin, in the order of _NAMES, and its size.

    Raises:
        DamagedError: if they are impossible.
    """
    file, places = io.BytesIO(extra), [0, _HEADER - 24 - len(_MAGIC)]
    before, names = read_varint(file)[0], read_varint(file)[0]
    for length in layout.sizes:
        places.append(places[-1] + length)
    if places[-1] + before + names > size:
        raise _impossible()
    return [*places, size - names, size]


def _regions(places: list[int]) -> tuple[Region, ...]:
    tables = zip(pairwise(places[1:-2]), _FORMS, strict=True)
    found = [(*span, Content("table", form.itemsize)) for span, (form, _) in tables if span[0] < span[1]]
    return (*found, (places[-2], places[-1], Content("text")))


def _sums(raw: bytes) -> bytes:
    """Return the checksums of a file: Adler-32 and SHA-1."""
    digest = hashlib.sha1(raw[_SUMS + 24 :], usedforsecurity=False).digest()
    return zlib.adler32(digest + raw[_SUMS + 24 :]).to_bytes(4, "little") + digest


def _impossible() -> DamagedError:
    return DamagedError("the parts of an Android executable are impossible: the file is damaged")
