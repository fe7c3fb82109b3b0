"""Fields of zip archives that follow from the members: CRC-32 and sizes, and offsets in the central directory.

They are zeros in the own bytes of a node, and flags of each member say which of its fields are filled in again.
docs/format.md specifies it (21.2).
"""

import struct
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["Member", "emptied", "fill"]

_LOCAL, _DESCRIPTOR, _ENTRY, _END = b"PK\3\4", b"PK\7\x08", b"PK\1\2", b"PK\5\6"
_HEADER, _ENTRY_SIZE, _END_SIZE = 30, 46, 22  # bytes without names
IN_HEADER, IN_DESCRIPTOR, IN_DIRECTORY = 1, 2, 4  # flags: fields of the header, the descriptor, the directory entry
ALL = IN_HEADER | IN_DESCRIPTOR | IN_DIRECTORY
_FARTHEST = 1 << 12  # bytes before a stream in which its header begins


class Member(NamedTuple):
    """A wrapper in the bytes of a node.

    Attributes:
        start: Its first byte.
        end: The one after its last.
        content: What is in it, uint8; None for wrappers other than zip members.
        flags: Its fields that are filled in.
    """

    start: int
    end: int
    content: np.ndarray | None = None
    flags: int = 0

    @property
    def fields(self) -> bytes:
        """CRC-32 and both sizes."""
        assert self.content is not None
        sizes = (size & 0xFFFFFFFF for size in (self.end - self.start, self.content.size))
        return struct.pack("<III", zlib.crc32(self.content.data), *sizes)


class _Field(NamedTuple):
    """Bytes at some places that follow from the member with a number, and its flag for them."""

    values: tuple[tuple[int, bytes], ...]
    member: int
    flag: int


def fill(data: np.ndarray, members: Sequence[Member]) -> None:
    """Write the fields that the flags of members name into the bytes of a node.

    Args:
        data: uint8, changed in place.
        members: all wrappers of the node, in order.
    """
    for values, _, _ in list(_fields(data.tobytes(), members)):
        for at, value in values:
            data[at : at + len(value)] = np.frombuffer(value, np.uint8)


def emptied(data: np.ndarray, members: Sequence[Member]) -> tuple[np.ndarray, list[int]]:
    """Return the bytes of a node with zeros for the fields that can be filled in, and the flags of all wrappers.

    Args:
        data: uint8.
        members: all wrappers of the node, in order.
    """
    raw, flags = data.tobytes(), [0] * len(members)
    if not any(member.content is not None for member in members):
        return data, flags
    empty = bytearray(raw)
    for values, number, flag in _fields(raw, [member._replace(flags=ALL) for member in members]):
        if all(raw[at : at + len(value)] == value for at, value in values):
            flags[number] |= flag
            for at, value in values:
                empty[at : at + len(value)] = bytes(len(value))
    found, filled = np.frombuffer(bytes(empty), np.uint8), np.frombuffer(empty, np.uint8)
    fill(filled, [member._replace(flags=flag) for member, flag in zip(members, flags, strict=True)])
    return (found, flags) if np.array_equal(filled, data) else (data, [0] * len(members))


def _fields(data: bytes, members: Sequence[Member]) -> Iterator[_Field]:
    """Yield the fields of the members that their flags name; data may have zeros there."""
    known, done = dict[bytes, deque[tuple[int, int]]](), 0  # numbers and headers of members by name
    for number, (member, after) in enumerate(zip(members, [*(m.start for m in members[1:]), len(data)], strict=True)):
        header = _header(data, done, member.start) if member.content is not None and member.flags else -1
        done = member.end
        if header >= 0:
            if member.flags & IN_HEADER:
                yield _Field(((header + 14, member.fields),), number, IN_HEADER)
            descriptor = done + 4 * (data[done : done + 4] == _DESCRIPTOR)
            if member.flags & IN_DESCRIPTOR and descriptor + 12 <= after:
                yield _Field(((descriptor, member.fields),), number, IN_DESCRIPTOR)
            if member.flags & IN_DIRECTORY:
                size = int.from_bytes(data[header + 26 : header + 28], "little")
                known.setdefault(data[header + 30 : header + 30 + size], deque()).append((number, header))
        for base, at, name in _entries(data, done, after):
            if waiting := known.get(name):
                listed, place = waiting.popleft()
                offset = struct.pack("<I", place - base & 0xFFFFFFFF)
                yield _Field(((at + 16, members[listed].fields), (at + 42, offset)), listed, IN_DIRECTORY)


def _header(data: bytes, begin: int, end: int) -> int:
    """Return where the local header that ends at `end` begins, or -1."""
    place = end
    while (place := data.rfind(_LOCAL, max(begin, end - _FARTHEST), place)) >= 0:
        if end - place >= _HEADER and place + _HEADER + sum(struct.unpack_from("<HH", data, place + 26)) == end:
            return place
    return -1


def _entries(data: bytes, begin: int, end: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield the entries of central directories from `begin` to `end`: the archive's start, their own, and a name."""
    at = begin
    while (at := data.find(_ENTRY, at, end)) >= 0:
        start, found = at, list[tuple[int, bytes]]()
        while data.startswith(_ENTRY, at) and at + _ENTRY_SIZE <= end:
            sizes = struct.unpack_from("<HHH", data, at + 28)
            found.append((at, data[at + _ENTRY_SIZE : at + _ENTRY_SIZE + sizes[0]]))
            at += _ENTRY_SIZE + sum(sizes)
        base = 0
        if data.startswith(_END, at) and at + _END_SIZE <= end:
            base = start - int.from_bytes(data[at + 16 : at + 20], "little")
        yield from ((base, place, name) for place, name in found)
        at = max(at, start + 1)
