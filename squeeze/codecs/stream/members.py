"""The index of a shard, which is a .sqz file of a tar: where each file of the tar lies in it.

It lies beside the shard in a file of its own, so that a shard is what every reader of tars takes. docs/format.md
specifies it. How tars are made is shards/tar.py's.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from squeeze.codecs.stream.compressor import compress
from squeeze.codecs.stream.decompressor import decompress
from squeeze.errors import DamagedError, FormatError, LimitError, printable
from squeeze.system.files import SUFFIX, status
from squeeze.system.json_object import check, parse
from squeeze.system.limits import Limits
from squeeze.system.names import relative
from squeeze.system.sized_file import SizedFile

__all__ = ["MAX_TEXT", "Member", "MemberFile", "Members", "index_bytes", "index_name", "line_of", "read_members"]

MAX_TEXT = 1 << 26  # bytes of an index, before it is compressed
_MORE = 1 << 12  # of its first line, and of the stream's header
_LEVEL = 1
_FORMAT, _VERSION = "squeeze.members", 1
_OF_LINE = 512  # bytes that Python takes for a line, and what it tells
_LONGEST = 1 << 16  # bytes of a line: the longest name with every letter escaped, and numbers
_FIRST = {"format": str, "version": int, "size": int, "checksum": str}


class Member(NamedTuple):
    """One file of a shard: `size` bytes of the raw content from `offset` on. checksum: their XXH3-64."""

    name: str
    offset: int
    size: int
    checksum: int


class Members(NamedTuple):
    """What an index tells, in the order of the tar. size, checksum: of the tar, as in the shard's own index."""

    by_name: dict[str, Member]
    size: int
    checksum: int


def index_name(shard: Path) -> Path:
    """part-0.tar.members.sqz for part-0.tar.sqz."""
    return shard.with_name(f"{shard.name.removesuffix(SUFFIX)}.members{SUFFIX}")


def line_of(member: Member) -> bytes:
    """Of the index."""
    return _line([member.name, member.offset, member.size, f"{member.checksum:016x}"])


def index_bytes(lines: bytes, size: int, checksum: int) -> bytes:
    """The file of an index. size, checksum: of the tar."""
    first = {"format": _FORMAT, "version": _VERSION, "size": size, "checksum": f"{checksum:016x}"}
    return compress(_line(first) + lines, _LEVEL)


def _line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def read_members(shard: Path, limits: Limits | None = None) -> Members | None:
    """The index beside a shard; None where there is none. Raises FormatError where it is damaged, or one that this
    version cannot read, OSError, and LimitError."""
    limits, path = limits or Limits(), index_name(shard)
    try:
        with path.open("rb") as file:
            size = status(file).st_size
            if size > MAX_TEXT + _MORE:
                raise FormatError("is larger than any")
            limits.need_memory(size, f"an index of {size:,} bytes")
            coded = file.read()
        return _parsed(decompress(coded, limits=replace(limits, output=MAX_TEXT + _MORE)), limits)
    except FileNotFoundError:
        return None
    except LimitError:
        raise
    except FormatError as error:
        raise type(error)(f"the index of members, {path}: {error}") from None


def _parsed(text: bytes, limits: Limits) -> Members:
    lines = text.split(b"\n")
    limits.need_memory(_OF_LINE * len(lines), f"an index of {len(lines):,} members")
    size, checksum = _first(_value(lines[0], limits))
    found = {}
    for line in lines[1:-1]:
        member = _member(_value(line, limits))
        found[member.name] = member
        if member.offset + member.size > size:
            raise _damaged()
    if lines[-1] or len(found) != len(lines) - 2:
        raise _damaged()
    return Members(found, size, checksum)


def _value(line: bytes, limits: Limits) -> Any:
    try:
        return parse(line, limits, most=_LONGEST)
    except FormatError:
        raise _damaged() from None


def _first(value: Any) -> tuple[int, int]:
    if not isinstance(value, dict) or value.get("format") != _FORMAT:
        raise FormatError("is not one")
    if value.get("version") != _VERSION:
        raise FormatError(f"its version {printable(value.get('version'))} is unknown: use a newer squeeze")
    try:
        check(value, _FIRST)
    except FormatError:
        raise _damaged() from None
    return _count(value["size"]), _number(value["checksum"])


def _member(value: Any) -> Member:
    if not isinstance(value, list) or len(value) != 4:
        raise _damaged()
    try:
        name = relative(value[0])
    except FormatError as error:
        raise DamagedError(f"a line of it says what cannot be: {error}") from None
    return Member(name, _count(value[1]), _count(value[2]), _number(value[3]))


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise _damaged()
    return value


def _number(digits: Any) -> int:
    try:
        number = int(digits, 16)
    except (ValueError, TypeError):
        raise _damaged() from None
    if f"{number:016x}" != digits:
        raise _damaged()
    return number


def _damaged() -> DamagedError:
    return DamagedError("a line of it says what cannot be: it is damaged")


class MemberFile(SizedFile):
    """A member as a seekable file. read_at(position, buffer) reads raw content of the shard. Read from its start to its
    end, it is held against its checksum: raises DamagedError."""

    def __init__(self, member: Member, read_at: Any):
        super().__init__(member.size)
        self.member, self._read_at = member, read_at
        self._digest, self._seen = xxhash.xxh3_64(), 0

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")[: max(self._size - self._position, 0)]
        count: int = self._read_at(self.member.offset + self._position, view) if view.nbytes else 0
        if self._position == self._seen:
            self._digest.update(view[:count])
            self._seen += count
            if self._seen == self.member.size and self._digest.intdigest() != self.member.checksum:
                raise DamagedError(f"the checksum of the member {printable(self.member.name)} differs: it is damaged")
        self._position += count
        return count
