"""Central directories of zip archives, which follow from the headers of the members.

Each entry repeats what the member's own header says, in the order of the members. So directories become differences
(xor) from what is expected, which are zeros nearly everywhere, and so do the CRC-32 of stored members.
docs/format.md specifies it (21.20). The fields are those of APPNOTE.TXT by PKWARE, 4.3.
"""

import heapq
import re
import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from squeeze.codecs.parse import zip_header
from squeeze.codecs.parse.zip_header import Header

__all__ = ["exchange"]

_SIGNATURE = re.compile(rb"PK(?:\x01\x02|\x03\x04|\x07\x08)")
_ENTRY, _END = b"PK\1\2", b"PK\5\6"
_ENTRY_SIZE, _END_SIZE, _DESCRIPTOR = 46, 22, 16  # bytes without names
_MOST_EXTRA = 256  # bytes of extra fields that are expected
_SUMMED = 4  # times the data's bytes of stored members whose CRC-32 is expected
_OWN = 12  # bytes of an entry that are expected from the entry before


@dataclass
class _Archive:
    """Hold what the next entry of a directory probably has.

    Attributes:
        base: The place from which offsets count.
        own: The last entry's bytes that do not follow from a header: who made it, and attributes.
        lengths: The bytes of its extra fields by their numbers, or None before the first entry.
    """

    base: int
    own: bytes = bytes(_OWN)
    lengths: dict[bytes, int] | None = None


@dataclass
class _Directories:
    """The exchange of the bytes of a node, from the first to the last.

    `plain` is the bytes without differences, as far as they are known: `data` itself if that has differences.
    """

    data: bytearray
    plain: bytes | bytearray
    is_coded: bool
    known: Mapping[int, bytes]
    places: list[int] = field(default_factory=list)  # of headers
    locals: dict[int, Header] = field(default_factory=dict)
    stored: list[tuple[int, int, int]] = field(default_factory=list)  # a heap: ends, begins and headers of members
    first: int | None = None  # the first header of the archive
    left: int = 0  # bytes of stored members that may still be summed up

    def gap(self, begin: int, end: int) -> None:
        """Exchange the bytes between two wrappers."""
        at = begin
        while match := _SIGNATURE.search(self.data, at, end):
            at = match.start()
            self.sum_up(at)
            if match[0] == _ENTRY:
                at = self._directory(at, end)
            elif match[0] == zip_header.MARK:
                at = self._header(at, end)
            else:
                self._descriptor(at, end)
                at += 4

    def _swap(self, at: int, expected: bytes) -> bytes:
        """Exchange bytes and their differences from what is expected, and return the bytes."""
        size = len(expected)
        now = bytes(self.data[at : at + size])
        other = (int.from_bytes(now, "big") ^ int.from_bytes(expected, "big")).to_bytes(size, "big")
        self.data[at : at + size] = other
        return other if self.is_coded else now

    def _header(self, at: int, end: int) -> int:
        """Note a member's header, and return where to go on."""
        header = zip_header.read(self.data, at, end)
        if header is None:
            return at + 4
        if at in self.known:
            header = header.with_sums(self.known[at])
        elif not header.is_streamed and header.method == 0:
            size = header.sizes[0]
            if header.end + size <= len(self.data) and size <= self.left:
                self.left -= size
                heapq.heappush(self.stored, (header.end + size, header.end, at))
        self.places.append(at)
        self.locals[at] = header
        if self.first is None and (not self.stored or self.stored[0][2] == at):
            self.first = at
        return header.end

    def _descriptor(self, at: int, end: int) -> None:
        """Note the fields behind a member that was not opened."""
        last = self.locals[self.places[-1]] if self.places else None
        if last and last.is_streamed and last.start not in self.known and at + _DESCRIPTOR <= end:
            fields = bytes(self.data[at + 4 : at + _DESCRIPTOR])
            if int.from_bytes(fields[4:8], "little") == at - last.end:
                self.locals[last.start] = last.with_sums(fields)

    def sum_up(self, at: int) -> None:
        """Exchange the CRC-32 of the stored members that end before a place."""
        while self.stored and self.stored[0][0] <= at:
            end, begin, header = heapq.heappop(self.stored)
            with memoryview(self.plain) as view:
                expected = struct.pack("<I", zlib.crc32(view[begin:end]))
            self.locals[header] = self.locals[header].with_sums(self._swap(header + 14, expected))

    def _directory(self, at: int, end: int) -> int:
        """Exchange a central directory, and return where it ends."""
        if at + _ENTRY_SIZE > end:
            return at + 4
        start, count = at, 0
        inner = self.stored[0][1] if self.stored else self.first
        archive = _Archive(inner if inner is not None else start)
        expected = bisect_right(self.places, archive.base - 1)  # the number of a header
        while True:
            found, expected = self._entry(at, end, archive, expected)
            if not found:
                return at + _ENTRY_SIZE
            at, count = found, count + 1
            following = _ENTRY if not self.is_coded else bytes(4)
            if at + _ENTRY_SIZE > end or self.data[at : at + 4] != following:
                break
            self._swap(at, _ENTRY)
        if self.data.startswith(_END, at) and at + _END_SIZE <= end:
            most = min(count, 0xFFFF)
            numbers = (most, most, at - start & 0xFFFFFFFF, start - archive.base & 0xFFFFFFFF)
            self._swap(at + 8, struct.pack("<HHII", *numbers))
            at += _END_SIZE
            self.first = self.first if self.stored else None
        return at

    def _entry(self, at: int, end: int, archive: _Archive, expected: int) -> tuple[int, int]:
        """Exchange an entry, and return where it ends, or 0, and the number of the header expected next."""
        guess = self.places[expected] - archive.base if expected < len(self.places) else 0
        offset = int.from_bytes(self._swap(at + 42, struct.pack("<I", guess & 0xFFFFFFFF)), "little")
        local = self.locals.get(archive.base + offset)
        if local is None and offset in self.locals:
            archive.base, local = 0, self.locals[offset]
        fields, name = (local.fields, local.name) if local else (bytes(24), b"")
        extra = _expected_extra(local.extra, archive.lengths) if local else b""
        own = archive.own
        actual = self._swap(at + 4, own[:2] + fields + struct.pack("<H", len(extra)) + own[2:])
        sizes = struct.unpack_from("<HHH", actual, 24)
        stop = at + _ENTRY_SIZE + sum(sizes)
        if stop > end:
            return 0, expected
        begin = at + _ENTRY_SIZE
        self._swap(begin, name[: sizes[0]])
        written = self._swap(begin + sizes[0], extra[: sizes[1]])
        archive.own = actual[:2] + actual[28:]
        if sizes[1] <= _MOST_EXTRA:
            rest = bytes(self.data[begin + sizes[0] + len(written) : begin + sizes[0] + sizes[1]])
            archive.lengths = {number: len(value) for number, value in _extra_fields(written + rest)}
        number = bisect_right(self.places, local.start) if local else expected
        return stop, number


def _extra_fields(extra: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the numbers and the values of extra fields."""
    at = 0
    while at + 4 <= len(extra):
        size = int.from_bytes(extra[at + 2 : at + 4], "little")
        yield extra[at : at + 2], extra[at + 4 : at + 4 + size]
        at += 4 + size


def _expected_extra(extra: bytes, lengths: Mapping[bytes, int] | None) -> bytes:
    """Return the extra fields of an entry from those of the header, with the lengths that the entry before has."""
    if len(extra) > _MOST_EXTRA:
        return b""
    if lengths is None:
        return extra
    parts = ((number, value[: lengths[number]]) for number, value in _extra_fields(extra) if number in lengths)
    return b"".join(number + struct.pack("<H", len(value)) + value for number, value in parts)


def exchange(
    data: np.ndarray, spans: Sequence[tuple[int, int]], known: Mapping[int, bytes], is_coded: bool
) -> np.ndarray:
    """Return the bytes of a node with directories in place of differences, or the other way round.

    Args:
        data: uint8, the bytes.
        spans: where its wrappers begin and end, in order.
        known: CRC-32 and both sizes of the members that are wrappers, by the places of their headers.
        is_coded: whether `data` has differences.
    """
    now = bytearray(data.tobytes())
    found = _Directories(now, now if is_coded else bytes(now), is_coded, known, left=_SUMMED * data.size)
    done = 0
    for start, end in [*spans, (data.size, data.size)]:
        found.gap(done, start)
        done = end
    found.sum_up(data.size)
    return np.frombuffer(found.data, np.uint8)
