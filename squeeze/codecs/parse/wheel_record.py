"""The RECORD of a wheel: SHA-256 and size of each member, which follow from the members.

A line remains for each of its lines. It is empty if the line is that of the member that is expected next. It is the
name and a mark if the line is that of another member, else the line itself. docs/format.md specifies it (21.21). The
format of a RECORD is that of PEP 376.
"""

import base64
import hashlib
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from squeeze.codecs.parse.deflate import reading
from squeeze.codecs.parse.room import FIELD, STEP, Room
from squeeze.codecs.parse.zip_fields import Member
from squeeze.errors import DamagedError

__all__ = ["is_record", "lines_of", "record_of"]

_LOCAL = b"PK\3\4"
_HEADER = 30  # bytes of a member's header without its name
_NAME = b".dist-info/RECORD"
_MARK = b"*"
_MOST = 1 << 22  # bytes of a RECORD
_MOST_INFLATED = 1 << 16  # bytes of a member that was not opened, but is inflated
_READ = 4  # times as long as writing a byte of a member: to read a coded byte, which may be blocks of nothing
_NEVER = 1 << 62  # the cost of members that are not read
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
        while (at := data.find(_LOCAL, at, after)) >= 0:
            stop = at + _HEADER
            if stop > after:
                break
            flags, method = struct.unpack_from("<HH", data, at + 6)
            coded, size, *sizes = struct.unpack_from("<IIHH", data, at + 18)
            stop += sum(sizes)
            if stop > after:
                at += len(_LOCAL)
                continue
            name, content = data[at + _HEADER : at + _HEADER + sizes[0]], None
            if stop == after:
                inside = members[number].content if number < len(members) else None
                content = None if inside is None else inside.tobytes()
            elif not flags & _STREAMED and stop + coded <= after and (cost := _cost(method, coded, size)) <= left:
                left -= cost
                content = _content(method, data[stop : stop + coded], size)
            if not name.endswith(b"/"):
                yield _Listed(name, content)
            at = stop
        done = members[number].end if number < len(members) else after


def _cost(method: int, coded: int, size: int) -> int:
    """Return how many bytes of content take as much time as reading a member that was not opened."""
    if method == _STORED:
        return coded
    is_short = size <= _MOST_INFLATED and coded <= 2 * size + FIELD
    return STEP + size + _READ * coded if method == _DEFLATED and is_short else _NEVER


def _content(method: int, coded: bytes, size: int) -> bytes | None:
    """Return the content of a member that was not opened, of some size, or None."""
    if method == _STORED:
        return coded
    found = reading.read(np.frombuffer(coded, np.uint8), Room(size))
    return found[0].content.tobytes() if found and (found[0].content.size, found[1]) == (size, len(coded)) else None


def _impossible() -> DamagedError:
    return DamagedError("the RECORD of a wheel is impossible: the file is damaged")
