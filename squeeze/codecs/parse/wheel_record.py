"""The RECORD of a wheel: SHA-256 and size of each member, which follow from the members.

A line remains for each of its lines. It is empty if the line is that of the member that is expected next. It is the
name and a mark if the line is that of another member, else the line itself. docs/format.md specifies it (21.21). The
format of a RECORD is that of PEP 376.
"""

import base64
import hashlib
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from squeeze.codecs.parse.zip_fields import Member
from squeeze.errors import DamagedError

__all__ = ["is_record", "lines_of", "record_of"]

_LOCAL = b"PK\3\4"
_HEADER = 30  # bytes of a member's header without its name
_NAME = b".dist-info/RECORD"
_MARK = b"*"
_MOST = 1 << 24  # bytes of a RECORD
_MOST_INFLATED = 1 << 16  # bytes of a member that was not opened, but is inflated
_STORED, _DEFLATED = 0, 8
_STREAMED = 8  # flag of members whose sizes follow them


class _Listed(NamedTuple):
    """A member before the RECORD: its name, and its content if that is known."""

    name: bytes
    content: bytes | None

    @property
    def line(self) -> bytes:
        """Its line in a RECORD."""
        if self.content is None:  # as of the RECORD itself
            return self.name + b",,"
        digest = base64.urlsafe_b64encode(hashlib.sha256(self.content).digest()).rstrip(b"=")
        return b"%b,sha256=%b,%d" % (self.name, digest, len(self.content))


def is_record(data: bytes | np.ndarray, end: int) -> bool:
    """Return whether the header of a zip member that ends at a place of data names a RECORD."""
    return bytes(data[max(end - len(_NAME), 0) : end]) == _NAME


def lines_of(content: np.ndarray, data: bytes, members: Sequence[Member]) -> np.ndarray | None:
    """Return what remains of a RECORD, or None if it does not come back.

    Args:
        content: uint8, the RECORD.
        data: the bytes of the node before it.
        members: the wrappers in them.
    """
    raw, listed = content.tobytes(), _Listing(data, members)
    if not raw.endswith(b"\n") or len(raw) > _MOST:
        return None
    found = np.frombuffer(b"\n".join(map(listed.remains, raw[:-1].split(b"\n"))), np.uint8)
    return found if found.size < content.size and np.array_equal(record_of(found, data, members), content) else None


def record_of(remains: np.ndarray, data: bytes, members: Sequence[Member]) -> np.ndarray:
    """Return the RECORD of which `lines_of` returned what remains.

    Raises:
        DamagedError: if it is longer than any.
    """
    listed, lines, left = _Listing(data, members), list[bytes](), _MOST
    for rest in remains.tobytes().split(b"\n"):
        lines.append(listed.line(rest) + b"\n")
        left -= len(lines[-1])
        if left < 0:
            raise DamagedError("the RECORD of a wheel is impossible: the file is damaged")
    return np.frombuffer(b"".join(lines), np.uint8)


class _Listing:
    """The members before a RECORD, and the number of the one that is expected next."""

    def __init__(self, data: bytes, members: Sequence[Member]):
        self.members = list(_listed(data, members))
        self.next = 0
        self.numbers = {member.name: number for number, member in enumerate(self.members)}
        self.lines = dict[int, bytes]()

    def remains(self, line: bytes) -> bytes:
        """Return what remains of the next line."""
        expected = self._line(self.next)
        if line and line == expected:
            self.next += 1
            return b""
        name = line.partition(b",")[0]
        number = self.numbers.get(name, -1)
        if number < 0 or line != self._line(number):
            return line
        self.next = number + 1
        return name + _MARK

    def line(self, remains: bytes) -> bytes:
        """Return the line of which that remains."""
        number = self.next
        if remains.endswith(_MARK):
            number = self.numbers.get(remains[:-1], -1)
        elif remains:
            return remains
        line = self._line(number)
        if line:
            self.next = number + 1
        return line

    def _line(self, number: int) -> bytes:
        """Return the line of a member, empty without one."""
        if not 0 <= number < len(self.members):
            return b""
        if number not in self.lines:
            self.lines[number] = self.members[number].line
        return self.lines[number]


def _listed(data: bytes, members: Sequence[Member]) -> Iterator[_Listed]:
    """Yield the members of a zip archive in the order of their headers."""
    left, done = max(_MOST_INFLATED, len(data)), 0
    for number, after in enumerate([*(member.start for member in members), len(data)]):
        at = done
        while (at := data.find(_LOCAL, at, after)) >= 0:
            stop = at + _HEADER
            if stop > after:
                break
            flags, method = struct.unpack_from("<HH", data, at + 6)
            (coded,), sizes = struct.unpack_from("<I", data, at + 18), struct.unpack_from("<HH", data, at + 26)
            stop += sum(sizes)
            if stop > after:
                at += len(_LOCAL)
                continue
            name, content = data[at + _HEADER : at + _HEADER + sizes[0]], None
            if stop == after:
                inside = members[number].content if number < len(members) else None
                content = None if inside is None else inside.tobytes()
            elif not flags & _STREAMED and stop + coded <= after:
                content = _content(method, data[stop : stop + coded], left)
                left -= len(content or b"")
            if not name.endswith(b"/"):
                yield _Listed(name, content)
            at = stop
        done = members[number].end if number < len(members) else after


def _content(method: int, stored: bytes, most: int) -> bytes | None:
    """Return the content of a member that was not opened, of at most `most` bytes, or None."""
    if method == _STORED:
        return stored
    most = min(most, _MOST_INFLATED)
    if method != _DEFLATED or most <= 0:
        return None
    inflating = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        content = inflating.decompress(stored, most + 1)
    except zlib.error:
        return None
    return content if inflating.eof and not inflating.unused_data and len(content) <= most else None
