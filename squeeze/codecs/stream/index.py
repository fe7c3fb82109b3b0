"""The index at the end of a stream, and the structure of a .sqz file without decoding it.

docs/format.md specifies it; container.py has headers and blocks.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

from squeeze.codecs.stream import media
from squeeze.codecs.stream.container import (
    BAD_PADDING,
    CODECS,
    END,
    END_MARK,
    MAX_BLOCK,
    OPENED,
    PADDING,
    RAW,
    REPEATS,
    RUNS,
    SPLIT,
    STORED,
    BlockHeader,
    Coded,
    ForeignError,
    Header,
    TrailingError,
    check16,
    read_block_header,
    read_content,
    read_header,
    read_short_block_header,
)
from squeeze.codecs.stream.memory import EntryCounter
from squeeze.codecs.stream.repeats import pass_copies, read_ranges
from squeeze.errors import DamagedError, FormatError, TruncatedError
from squeeze.system.binary import CUT, PIECE, read_exactly, read_varint, varint
from squeeze.system.limits import Limits

MAX_INDEX = 1 << 28
_FOOTER = 8
_LEAST_BLOCK = 13  # bytes of the shortest block


@dataclass(frozen=True)
class Block:
    """A block of a file: its place, sizes and content."""

    kind: int
    content: str  # "text", "executable", "table 16", "other", "runs", "stored", "opened wrappers", "image"
    raw_offset: int
    raw_length: int
    coded_offset: int  # offset of the block's header
    coded_length: int  # bytes with the header
    payload_length: int
    checksum: int  # XXH3-64 of the raw bytes; in a short stream its lower half
    sources: tuple[tuple[int, int], ...] = ()  # ranges (start, end) of the raw bytes before it that it repeats

    @property
    def codec(self) -> str:
        return CODECS[self.kind]


@dataclass(frozen=True)
class Stream:
    """A complete .sqz stream. A file is one or more of them."""

    header: dict[str, Any]
    short: bool
    blocks: list[Block]
    offset: int
    coded_size: int
    raw_size: int
    checksum: int  # XXH3-64 of the raw bytes; of a short stream its lower half


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


def read_index(file: BinaryIO, limits: Limits | None = None) -> list[Stream]:
    """Return every stream of a seekable .sqz file without decoding blocks.

    Indexes are read from the end of the file. If there are short streams, which have no index, headers are read from
    its start.

    Raises:
        FormatError: if the file is damaged.
    """
    limits = limits or Limits()
    end = file.seek(0, io.SEEK_END)
    if end == 0:
        raise FormatError("not a .sqz file: it is empty")
    file.seek(0)
    first = read_header(file)  # a file that is not .sqz is named as such, whatever its end
    if first is not None and first.short:
        return _in_whole_file(_streams_from_front(file, end, EntryCounter(limits)))
    try:
        return _in_whole_file(_streams_from_end(file, end, EntryCounter(limits)))
    except FormatError as error:
        try:
            streams = _streams_from_front(file, end, EntryCounter(limits))
        except TrailingError:
            raise  # more precise than a missing end mark
        except FormatError:
            streams = []
        if not any(stream.short for stream in streams):
            raise error from None
        return _in_whole_file(streams)


def indexes_from_end(file: BinaryIO, end: int, entries: EntryCounter) -> Iterator[tuple[Index, int, int]]:
    """Yield the index, start and end of every stream before offset `end`, the last stream first.

    Args:
        file: seekable.
        end: offset after the last stream.
        entries: counts blocks and streams against the limit of memory.

    Raises:
        FormatError: if an index is missing or damaged.
    """
    while end := before_padding(file, end):
        index, start = read_index_before(file, end, entries)
        yield index, start, end
        entries.add()
        end = start


def _streams_from_end(file: BinaryIO, end: int, entries: EntryCounter) -> list[Stream]:
    return [_stream(file, *place) for place in indexes_from_end(file, end, entries)][::-1]


def _streams_from_front(file: BinaryIO, end: int, entries: EntryCounter) -> list[Stream]:
    streams: list[Stream] = []
    start = 0
    while start < end:
        file.seek(start)
        try:
            header = read_header(file, padded=start > 0)
        except ForeignError:
            if not start:
                raise
            raise TrailingError.after(start) from None
        if header is None:
            break
        start = file.tell() - header.size
        if header.short:
            block_header = read_short_block_header(file, header.kind)
            block = _block(block_header, content_name(file, block_header, header.names_content), 0, start + header.size)
            finish = block.coded_offset + block.coded_length
            stream = Stream(
                header.fields, True, [block], start, finish - start, block_header.raw_length, block_header.checksum
            )
        else:
            index = _walk_blocks(file, header.size, end, entries)
            stream = _stream(file, index, start, file.tell())
            finish = start + stream.coded_size
        if finish > end:
            raise TruncatedError(CUT)
        streams.append(stream)
        entries.add()
        start = finish
    return streams


def _walk_blocks(file: BinaryIO, header_size: int, end: int, entries: EntryCounter) -> Index:
    """Build the index of the stream whose header was just read from its block headers; leave the file at its end."""
    index = Index(header_size)
    while (header := read_block_header(file)) is not None:
        if header.payload_length > end - file.tell():
            raise TruncatedError(CUT)
        index.entries.append((header.raw_length, header.size + header.payload_length))
        entries.add()
        file.seek(header.payload_length, io.SEEK_CUR)
    index.checksum = read_checksum(file, index)
    return index


def content_name(file: BinaryIO, block: BlockHeader | Coded, by_dictionary: bool = False) -> str:
    """Describe the content of a block.

    Args:
        file: at the payload.
        block: its header, or the block.
        by_dictionary: whether a dictionary fixes the content.
    """
    if block.kind == STORED:
        return "stored"
    if block.kind == OPENED:
        return "opened wrappers"
    if medium := media.of_block(block.kind):
        return medium.name_of(file.read(1))
    if by_dictionary:
        return "dictionary"
    has_runs = read_exactly(file, 1) == RUNS
    if has_runs:
        length, _ = read_varint(file)
        most = len(block.payload) if isinstance(block, Coded) else block.payload_length
        file.seek(min(length, most), io.SEEK_CUR)
        if read_exactly(file, 1) == RAW:
            return "runs"
    file.seek(-1, io.SEEK_CUR)
    content = str(read_content(file)[0])
    content = f"text and {content}" if block.kind == SPLIT else content
    return f"{content} and runs" if has_runs else content


def _sources(file: BinaryIO, block: BlockHeader, raw_offset: int) -> list[tuple[int, int]]:
    """Read the ranges of the raw bytes that the block at `raw_offset`, whose header was just read, repeats."""
    found = [(raw_offset + start, raw_offset + end) for start, end in read_ranges(file, block.payload_length)]
    if found and found[0][0] < 0:
        raise DamagedError("a block repeats bytes before the stream: the file is damaged")
    return found


def _block(header: BlockHeader, content: str, raw_offset: int, offset: int) -> Block:
    length = header.size + header.payload_length
    return Block(
        header.kind, content, raw_offset, header.raw_length, offset, length, header.payload_length, header.checksum
    )


def header_of(file: BinaryIO, index: Index, start: int) -> Header:
    """Read the header of a stream.

    Args:
        file: seekable.
        index: of the stream.
        start: offset of the stream.

    Raises:
        DamagedError: if header and index do not agree.
    """
    file.seek(start)
    header = read_header(file)
    if header is None or header.short or header.size != index.header_size:
        raise DamagedError("the index does not agree with the header: the file is damaged")
    return header


def _stream(file: BinaryIO, index: Index, start: int, end: int) -> Stream:
    header = header_of(file, index, start)
    blocks, offset, raw_offset = [], start + index.header_size, 0
    for raw, coded in index.entries:
        file.seek(offset)
        block_header = read_block_header(file)
        lengths = block_header and (block_header.raw_length, block_header.size + block_header.payload_length)
        if block_header is None or lengths != (raw, coded):
            raise DamagedError("the index does not agree with the blocks: the file is damaged")
        sources, kind, copies = list[tuple[int, int]](), block_header.kind, ""
        if kind == REPEATS:
            sources, copies = _sources(file, block_header, raw_offset), " and repeats"
            kind = pass_copies(file)
        content = content_name(file, replace(block_header, kind=kind), header.names_content) + copies
        blocks.append(replace(_block(block_header, content, raw_offset, offset), sources=tuple(sources)))
        offset += coded
        raw_offset += raw
    return Stream(header.fields, False, blocks, start, end - start, raw_offset, index.checksum)


def _placed(block: Block, before: int) -> Block:
    """Return a block of a stream as that of a file with `before` raw bytes before the stream."""
    sources = tuple((start + before, end + before) for start, end in block.sources)
    return replace(block, raw_offset=block.raw_offset + before, sources=sources)


def _in_whole_file(streams: list[Stream]) -> list[Stream]:
    """Return the streams with raw offsets that count from the start of the file."""
    placed, before = [], 0
    for stream in streams:
        blocks = [_placed(block, before) for block in stream.blocks]
        placed.append(replace(stream, blocks=blocks))
        before += stream.raw_size
    return placed
