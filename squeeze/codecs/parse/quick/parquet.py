"""Pages of Parquet files, compressed by Snappy or LZ4.

Each page has a header, a structure of Thrift's compact protocol, which names its bytes with and without compression.
What compressed it, only the footer says, which may be in another block: it is found by trying. Pages of gzip are opened
as gzip, and those of Zstandard and Brotli stay closed, since no other encoder makes the choices of theirs.
See parquet.thrift and Compression.md of apache/parquet-format.
"""

import re
from dataclasses import dataclass

import numpy as np

from squeeze.codecs.parse.protocol import Found, Wrapper
from squeeze.codecs.parse.quick.blocks import close_block, open_lz4, open_snappy
from squeeze.codecs.parse.room import STEP, Room

__all__ = ["ParquetPage"]

_NUMBER = rb"[\x80-\xff]{0,4}[\x00-\x7f]"
_DATA, _INDEX, _DICTIONARY, _DATA_2 = range(4)  # types of pages
_FIELD_OF_DATA_2 = 8
_MOST_HEADER = 1 << 16
_DEEPEST = 6  # structures in structures
_MOST_STEPS = 1 << 10  # bytes of a header that are read one by one
# Types of Thrift's compact protocol.
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 12
_INTEGERS = 4, 5, 6
_HADOOP = 8  # bytes of the two sizes before a block of LZ4 as Hadoop writes it


@dataclass(frozen=True)
class _Page:
    """A page: where its compressed bytes begin and end, and how many they were before."""

    begin: int
    end: int
    size: int


class ParquetPage(Wrapper):
    """The compressed bytes of a page, without those of its header."""

    name = "Parquet page"
    kind = 24
    # The fields 1 to 3: the type and both sizes. Then a checksum, or the header of the page's type.
    mark = re.compile(rb"\x15[\x00\x04\x06]\x15" + _NUMBER + rb"\x15" + _NUMBER + rb"(?=[\x15\x2c\x4c\x5c])")
    is_certain = True

    def open(self, data: bytes, start: int, room: Room) -> Found | None:
        before = room.attempts
        page = _page_at(data, start, room)
        if page is None or not page.size:
            room.spend(0)
            return None
        coded = np.frombuffer(data, np.uint8)[page.begin : page.end]
        for skipped, opens in ((0, open_snappy), (_hadoop_header(data, page), open_lz4)):
            if found := opens(coded[skipped:], page.size, room):
                room.attempts = before  # not in vain
                return Found(self.kind, page.begin + skipped, coded.size - skipped, found[0], None, found[1])
        return None

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        return close_block(content, extra)


def _hadoop_header(data: bytes, page: _Page) -> int:
    """Return the bytes of sizes before the block of a page, if they are those of one block."""
    sizes = page.size.to_bytes(4, "big") + max(page.end - page.begin - _HADOOP, 0).to_bytes(4, "big")
    return _HADOOP if data.startswith(sizes, page.begin) else 0


def _page_at(data: bytes, start: int, room: Room) -> _Page | None:
    """Return the page whose header is at a place, or None if it is cut off or invalid. Its bytes count as attempts."""
    reader = _Thrift(data[start : start + _MOST_HEADER])
    try:
        header = reader.structure(0)
    except (IndexError, ValueError):
        return None
    finally:
        room.attempts -= STEP * reader.steps
    size, coded = header.get(2, 0), header.get(3, 0)
    inner = header.get(_FIELD_OF_DATA_2, {}) if header.get(1) == _DATA_2 else {}
    if not isinstance(size, int) or not isinstance(coded, int) or not isinstance(inner, dict):
        return None
    levels = [inner.get(number, 0) for number in (5, 6)]
    if inner.get(7) == 0 or not all(isinstance(length, int) and length >= 0 for length in levels):
        return None
    before = sum(levels)
    begin = start + reader.at
    if not before < coded or not before < size or begin + coded > len(data):
        return None
    return _Page(begin + before, begin + coded, size - before)


class _Thrift:
    """A reader of a structure's numbers. Other values are passed over.

    Its methods raise IndexError at the end of the data, and ValueError if a value is invalid.
    """

    def __init__(self, data: bytes):
        self._data, self.at, self.steps = data, 0, 0

    def _byte(self) -> int:
        self.at, self.steps = self.at + 1, self.steps + 1
        if self.steps > _MOST_STEPS:
            raise ValueError("a header is too long")
        return self._data[self.at - 1]

    def _varint(self) -> int:
        value, shift = 0, 0
        while (byte := self._byte()) >= 128:
            value |= (byte & 127) << shift
            shift += 7
            if shift > 63:
                raise ValueError("a number is too long")
        return value | byte << shift

    def _number(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)

    def structure(self, depth: int) -> dict[int, object]:
        """Return the numbers and structures of a structure by their fields."""
        found, field = dict[int, object](), 0
        while header := self._byte():
            field = field + (header >> 4) if header >> 4 else self._number()
            found[field] = self._value(header & 15, depth)
        return found

    def _value(self, kind: int, depth: int) -> object:
        if depth > _DEEPEST:
            raise ValueError("structures are too deep")
        if kind in (_TRUE, _FALSE):
            return 2 - kind
        if kind in _INTEGERS:
            return self._number()
        if kind == _BYTE:
            return self._byte()
        if kind == _STRUCT:
            return self.structure(depth + 1)
        if kind == _DOUBLE:
            self.at += 8
        elif kind == _BINARY:
            length = self._varint()
            self.at += length
        elif kind in (_LIST, _SET):
            self._list(depth)
        else:
            raise ValueError("a type is unknown")
        if self.at > len(self._data):
            raise IndexError
        return None

    def _list(self, depth: int) -> None:
        header = self._byte()
        count = header >> 4 if header >> 4 < 15 else self._varint()
        for _ in range(min(count, _MOST_STEPS + 1)):
            self.steps += 1
            is_bit = header & 15 in (_TRUE, _FALSE)
            self._value(_BYTE if is_bit else header & 15, depth + 1)
