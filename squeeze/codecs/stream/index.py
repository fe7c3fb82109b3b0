"""The structure of a .sqz file without decoding it.

docs/format.md specifies it; container.py has headers and blocks, footer.py the indexes.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from squeeze.codecs.stream import media
from squeeze.codecs.stream.container import (
    CODECS,
    OPENED,
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
    read_block_header,
    read_content,
    read_header,
    read_short_block_header,
)
from squeeze.codecs.stream.footer import Index, before_padding, read_checksum, read_index_before
from squeeze.codecs.stream.memory import EntryCounter
from squeeze.codecs.stream.repeats import pass_copies, read_ranges
from squeeze.errors import DamagedError, FormatError, TruncatedError
from squeeze.system.binary import CUT, read_exactly, read_varint
from squeeze.system.limits import Limits


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
