"""The index at the end of a stream, which has the lengths of its blocks (docs/format.md)."""

import io
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from squeeze.codecs.stream.container import (
    BAD_PADDING,
    END,
    END_MARK,
    MAX_BLOCK,
    PADDING,
    check16,
)
from squeeze.codecs.stream.memory import EntryCounter
from squeeze.errors import DamagedError, FormatError, TruncatedError
from squeeze.system.binary import CUT, PIECE, read_exactly, read_varint, varint
from squeeze.system.limits import Limits

__all__ = ["Index", "before_padding", "read_checksum", "read_index_before"]

MAX_INDEX = 1 << 28
_FOOTER = 8
_LEAST_BLOCK = 13  # bytes of the shortest block


@dataclass
class Index:
    """The index at the end of a stream: sizes of its header and blocks, and a checksum of all raw bytes."""

    header_size: int
    entries: list[tuple[int, int]] = field(default_factory=list)  # (raw length, coded length with header)
    checksum: int = 0


def index_bytes(index: Index) -> bytes:
    """Return the index as it is written."""
    body = bytes([END]) + varint(index.header_size)
    body += b"".join(varint(raw) + varint(coded) for raw, coded in index.entries)
    body += index.checksum.to_bytes(8, "little")
    tail = len(body).to_bytes(4, "little")
    return body + check16(body + tail) + tail + END_MARK


def _parse_index(body: bytes, room: int, entries: EntryCounter) -> Index:
    """Parse the index of a stream that takes at most `room` bytes before it."""
    file = io.BytesIO(body[1:-8])
    index = Index(read_varint(file)[0], checksum=int.from_bytes(body[-8:], "little"))
    room -= index.header_size
    while file.tell() < len(body) - 9:
        raw, _ = read_varint(file)
        coded, _ = read_varint(file)
        if coded < _LEAST_BLOCK or not 1 <= raw <= max(MAX_BLOCK, coded):
            raise DamagedError("the index is damaged: a block's lengths are impossible")
        room -= coded
        if room < 0:
            break
        index.entries.append((raw, coded))
        entries.add()
    if room < 0:
        raise DamagedError("the index does not agree with the file's length: the file is damaged")
    return index


def read_following_index(file: BinaryIO, written: Index) -> None:
    """Read the index after its tag, and compare it with the blocks that were read.

    Raises:
        DamagedError: if they differ.
    """
    expected = index_bytes(written)
    if read_exactly(file, len(expected) - 1) != expected[1:]:
        raise DamagedError("the index does not agree with the blocks: the file is damaged")


def read_checksum(file: BinaryIO, written: Index) -> int:
    """Read the index after its tag as `read_following_index` does, and return its checksum of all raw bytes.

    Raises:
        DamagedError: if it does not agree with the blocks.
    """
    body = read_exactly(file, len(index_bytes(written)) - 1)
    checksum = int.from_bytes(body[-_FOOTER - 8 : -_FOOTER], "little")
    if index_bytes(replace(written, checksum=checksum))[1:] != body:
        raise DamagedError("the index does not agree with the blocks: the file is damaged")
    return checksum


def before_padding(file: BinaryIO, end: int) -> int:
    """Return the end of the stream before the padding that ends at offset `end`.

    Raises:
        FormatError: if the padding is not a multiple of 4 bytes.
    """
    place, zeros, length = end, 0, _FOOTER
    while place:
        length = min(place, length)
        file.seek(place - length)
        kept = len(read_exactly(file, length).rstrip(b"\0"))
        place, zeros = place - length, zeros + length - kept
        if kept:
            break
        length = PIECE
    if zeros % PADDING:
        raise FormatError(BAD_PADDING)
    return end - zeros


def read_index_before(file: BinaryIO, end: int, entries: EntryCounter | None = None) -> tuple[Index, int]:
    """Read the index of the stream that ends at offset `end`.

    Args:
        file: seekable.
        end: offset after the stream.
        entries: counts blocks against the limit of memory.

    Returns:
        the index, and the offset of the stream's first byte.

    Raises:
        DamagedError: if the index is damaged.
        TruncatedError: if there is no index.
    """
    if end < _FOOTER:
        raise TruncatedError(CUT)
    file.seek(end - _FOOTER)
    footer = read_exactly(file, _FOOTER)
    if footer[-2:] != END_MARK:
        raise TruncatedError("the end mark is missing: the file was cut off, or something was added to it")
    length = int.from_bytes(footer[2:6], "little")
    if not 10 <= length <= min(end - _FOOTER, MAX_INDEX):
        raise DamagedError("the index's length is impossible: the file is damaged")
    file.seek(end - _FOOTER - length)
    body = read_exactly(file, length)
    if check16(body + footer[2:6]) != footer[:2] or body[0] != END:
        raise DamagedError("the index is damaged: its checksum differs")
    room = end - _FOOTER - length
    index = _parse_index(body, room, entries or EntryCounter(Limits()))
    return index, room - index.header_size - sum(coded for _, coded in index.entries)
