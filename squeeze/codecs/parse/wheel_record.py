"""The RECORD of a wheel: SHA-256 and size of each member, which follow from the members.

A line remains for each of its lines. It is empty if the line is that of the member that is expected next. It is the
name and a mark if the line is that of another member, else the line itself. docs/format.md specifies it (21.21). The
format of a RECORD is that of PEP 376.
"""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from squeeze.codecs.parse import zip_header
from squeeze.codecs.parse.deflate import reading
from squeeze.codecs.parse.room import FIELD, STEP, Room
from squeeze.codecs.parse.zip_fields import Member
from squeeze.codecs.parse.zip_header import Header
from squeeze.errors import DamagedError

__all__ = ["is_record", "lines_of", "record_of"]

_NAME = b".dist-info/RECORD"
_MARK = b"*"
_MOST = 1 << 22  # bytes of a RECORD
_MOST_INFLATED = 1 << 16  # bytes of a member that was not opened, but is inflated
_READ = 4  # times as long as writing a byte of a member: to read a coded byte, which may be blocks of nothing
_NEVER = 1 << 62  # the cost of members that are not read
_STORED, _DEFLATED = 0, 8


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
    raw = content.tobytes()
    if not raw.endswith(b"\n") or len(raw) > _MOST:
        return None
    listed, remains = _Listing(data, members), list[bytes]()
    for line in raw[:-1].split(b"\n"):
        rest = listed.remains(line)
        if rest is None:
            return None
        remains.append(rest)
    found = np.frombuffer(b"\n".join(remains), np.uint8)
    return found if found.size < content.size and np.array_equal(_record(found, listed), content) else None


def record_of(remains: np.ndarray, data: bytes, members: Sequence[Member]) -> np.ndarray:
    """Return the RECORD of which `lines_of` returned what remains.

    Raises:
        DamagedError: if it is longer than any.
    """
    return _record(remains, _Listing(data, members))


def _record(remains: np.ndarray, listed: "_Listing") -> np.ndarray:
    lines, left = list[bytes](), _MOST
    if remains.size > _MOST:
        raise _impossible()
    listed.next = 0
    for rest in remains.tobytes().split(b"\n"):
        lines.append(listed.line(rest) + b"\n")
        left -= len(lines[-1])
        if left < 0:
            raise _impossible()
    return np.frombuffer(b"".join(lines), np.uint8)


class _Listing:
    """The members before a RECORD, and the number of the one that is expected next."""

    def __init__(self, data: bytes, members: Sequence[Member]):
        self.members = list(_listed(data, members))
        self.next = 0
        self.numbers = {member.name: number for number, member in enumerate(self.members)}
        self.lines = dict[int, bytes]()

    def remains(self, line: bytes) -> bytes | None:
        """Return what remains of the next line, or None if it would be taken for another one."""
        if line == self._line(self.next):
            self.next += bool(line)
            return b""
        name = line.partition(b",")[0]
        number = self.numbers.get(name, -1)
        if number < 0 or line != self._line(number):
            return line if line and not line.endswith(_MARK) else None
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
    left, done = _MOST_INFLATED + 2 * len(data), 0
    for number, after in enumerate([*(member.start for member in members), len(data)]):
        at = done
        while (at := data.find(zip_header.MARK, at, after)) >= 0:
            header = zip_header.read(data, at, after)
            if header is None:
                at += len(zip_header.MARK)
                continue
            content, at = None, header.end
            if at == after:
                inside = members[number].content if number < len(members) else None
                content = None if inside is None else inside.tobytes()
            elif not header.is_streamed and at + header.sizes[0] <= after and (cost := _cost(header)) <= left:
                left -= cost
                content = _content(header, data)
            if not header.name.endswith(b"/"):
                yield _Listed(header.name, content)
        done = members[number].end if number < len(members) else after


def _cost(header: Header) -> int:
    """Return how many bytes of content take as much time as reading a member that was not opened."""
    coded, size = header.sizes
    if header.method == _STORED:
        return coded
    is_short = size <= _MOST_INFLATED and coded <= 2 * size + FIELD
    return STEP + size + _READ * coded if header.method == _DEFLATED and is_short else _NEVER


def _content(header: Header, data: bytes) -> bytes | None:
    """Return the content of a member of data that was not opened, or None."""
    size = header.sizes[1]
    coded = data[header.end : header.end + header.sizes[0]]
    if header.method == _STORED:
        return coded
    found = reading.read(np.frombuffer(coded, np.uint8), Room(size))
    return found[0].content.tobytes() if found and (found[0].content.size, found[1]) == (size, len(coded)) else None


def _impossible() -> DamagedError:
    return DamagedError("the RECORD of a wheel is impossible: the file is damaged")
