"""The index of a .sqz file of a tar: the place of each file of the tar.

A shard has its index in a file next to it, an archive of a folder in its last stream. So readers of tars read both.
docs/format.md specifies it. shards/tar.py and archive/write.py make the tars.
"""

import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import xxhash

from squeeze.codecs.stream import container
from squeeze.codecs.stream.compressor import compress
from squeeze.codecs.stream.decompressor import decompress
from squeeze.codecs.stream.index import Stream
from squeeze.errors import DamagedError, FormatError, LimitError, printable
from squeeze.system.binary import SizedFile
from squeeze.system.documents import check, parse
from squeeze.system.files import SUFFIX, status
from squeeze.system.limits import Limits
from squeeze.system.storage import relative

__all__ = [
    "LEVEL",
    "MAX_TEXT",
    "Member",
    "MemberFile",
    "Members",
    "index_bytes",
    "index_name",
    "line_of",
    "read_members",
    "read_tail",
    "tail_bytes",
]

MAX_TEXT = 1 << 26  # bytes of an index, before it is compressed
_END = bytes(2 * tarfile.BLOCKSIZE)  # the end mark of a tar
_TAIL = 1 << 15  # bytes around the index at the end of a tar
_MORE = 1 << 12  # bytes of its first line and of the stream's header
LEVEL = 1
_FORMAT, _VERSION = "squeeze.members", 1
_OF_LINE = 512  # bytes of memory for a parsed line
_LONGEST = 1 << 16  # bytes of a line: the longest name with every letter escaped, and numbers
_FIRST = {"format": str, "version": int, "size": int, "checksum": str}


class Member(NamedTuple):
    """A file of a shard: `size` bytes of the raw content from `offset` on, with their XXH3-64."""

    name: str
    offset: int
    size: int
    checksum: int


class Members(NamedTuple):
    """The members of a shard in the order of its tar; size and checksum of the tar as in the shard's own index."""

    by_name: dict[str, Member]
    size: int
    checksum: int


def index_name(shard: Path) -> Path:
    """Return the path of a shard's index: part-0.tar.members.sqz for part-0.tar.sqz."""
    return shard.with_name(f"{shard.name.removesuffix(SUFFIX)}.members{SUFFIX}")


def line_of(member: Member) -> bytes:
    """Return a member's line of the index."""
    return _line([member.name, member.offset, member.size, f"{member.checksum:016x}"])


def index_bytes(lines: bytes, size: int, checksum: int) -> bytes:
    """Return the file of an index.

    Args:
        lines: of all members.
        size: bytes of the tar.
        checksum: XXH3-64 of the tar.
    """
    return compress(_text(lines, size, checksum), LEVEL)


def tail_bytes(lines: bytes, size: int, checksum: int) -> bytes:
    """Return the end of an archive's tar: its end mark, and then the index, which readers of tars ignore.

    Args:
        lines: of the index.
        size: bytes of the tar before its end.
        checksum: XXH3-64 of the tar before its end.
    """
    tail = _END + _text(lines, size, checksum)
    return tail + bytes(-(size + len(tail)) % tarfile.RECORDSIZE)


def read_tail(file: BinaryIO, streams: list[Stream], limits: Limits | None = None) -> Members | None:
    """Return the index in the last stream of an archive, or None if the file is not an archive.

    Args:
        file: a seekable .sqz file.
        streams: its streams, as `read_index` returned them.
        limits: of memory.

    Raises:
        FormatError: if the index is damaged, or of another archive.
        LimitError: if the index needs too much memory.
    """
    limits, last = limits or Limits(), streams[-1]
    if len(streams) != 2 or not len(_END) < last.raw_size <= MAX_TEXT + _TAIL:
        return None
    limits.need_memory(last.coded_size, f"an index of {last.coded_size:,} bytes")
    file.seek(last.offset)
    tail = decompress(file.read(last.coded_size), limits=replace(limits, output=MAX_TEXT + _TAIL))
    if not tail.startswith(_END + b'{"format":'):
        return None
    text = tail[len(_END) :].rstrip(b"\0")
    found, before = _parsed(text, limits), streams[0]
    if found.size != before.raw_size or not container.matches_checksum(found.checksum, before.checksum, before.short):
        raise FormatError("the index of members is that of another archive")
    return found


def _text(lines: bytes, size: int, checksum: int) -> bytes:
    first = {"format": _FORMAT, "version": _VERSION, "size": size, "checksum": f"{checksum:016x}"}
    return _line(first) + lines


def _line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def read_members(shard: Path, limits: Limits | None = None) -> Members | None:
    """Read the index of a shard, or return None if there is no file of that name.

    Args:
        shard: path of the shard.
        limits: of memory.

    Raises:
        FormatError: if it is damaged or of another version.
        OSError: if it cannot be read.
        LimitError: if it takes too much memory.
    """
    limits, path = limits or Limits(), index_name(shard)
    try:
        with path.open("rb") as file:
            size = status(file).st_size
            if size > MAX_TEXT + _MORE:
                raise FormatError("it is larger than an index can be")
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
        raise FormatError("it is not an index of members")
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
        raise DamagedError(f"a line is invalid: {error}") from None
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
    return DamagedError("a line is invalid: the index is damaged")


class MemberFile(SizedFile):
    """A member as a seekable file.

    It is compared with its checksum if it is read from start to end, which raises DamagedError.
    """

    def __init__(self, member: Member, read_at: Any):
        """Take a member, and `read_at(position, buffer)`, which reads raw content of the shard."""
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
