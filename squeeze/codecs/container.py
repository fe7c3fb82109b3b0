"""The .sqz format: reading and writing headers, blocks and the index. docs/format.md specifies it.

This module knows nothing of how a block's bytes are coded. Everything read is
checked against a limit before memory is taken for it.
"""

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import BinaryIO, NamedTuple

import xxhash

from squeeze.errors import DamagedError, FormatError, TruncatedError

FORMAT_VERSION = 1
SHORT_VERSION = 2  # of a short stream: one block that a prior codes, with next to nothing around it
NUMERICS_VERSION = 1
MAGIC = b"\xf5SQ"
END_MARK = b"QS"

END, STORED, BYTEWISE, TOKENWISE = 0, 1, 2, 3
CODECS = {STORED: "stored", BYTEWISE: "bytewise", TOKENWISE: "tokenwise"}

MAX_HEADER = 1 << 16
MAX_SHORT = (1 << 16) - 1  # raw bytes of a short stream
MAX_BLOCK = 1 << 28  # raw bytes of a coded block; a stored block may have any length
MAX_INDEX = 1 << 28
_FOOTER = 8
_PRIOR_BYTES = 4  # of a prior's SHA-256 in a short stream
_SHORT_CHECKSUM = (1 << 32) - 1
_LEAST_BLOCK = 12  # bytes of the smallest block header
_PIECE = 1 << 20
_CUT = "the file ends too early: it was cut off, and its end is missing"


KINDS_OF_CONTENT = ("other", "text", "executable", "table")
MAX_RECORD = 1 << 16


@dataclass(frozen=True)
class Content:
    """What a block seems to hold, which decides its contexts: a table has a record length in bytes."""

    kind: str
    record: int = 0

    def __str__(self) -> str:
        return f"table {self.record}" if self.record else self.kind


@dataclass(frozen=True)
class Block:
    """Where one block lies, and what is in it."""

    kind: int
    content: str  # "text", "executable", "table 16", "other", "stored"
    raw_offset: int
    raw_length: int
    coded_offset: int  # of the block's header
    coded_length: int  # with the header
    payload_length: int
    checksum: int  # XXH3-64 of the raw bytes; in a short stream its lower half

    @property
    def codec(self) -> str:
        return CODECS[self.kind]


@dataclass(frozen=True)
class Stream:
    """One complete .sqz stream: a file is one or several of them."""

    header: dict
    short: bool
    blocks: list[Block]
    offset: int
    coded_size: int
    raw_size: int
    checksum: int  # XXH3-64 of the raw bytes


class Header(NamedTuple):
    """What a stream begins with."""

    fields: dict
    size: int  # in bytes
    short: bool


@dataclass(frozen=True)
class BlockHeader:
    kind: int
    raw_length: int
    payload_length: int
    checksum: int
    size: int  # bytes of the header itself


@dataclass
class Index:
    """What stands at the end of a stream: sizes of the header and of each block, and the checksum of it all."""

    header_size: int
    entries: list[tuple[int, int]] = field(default_factory=list)  # (raw length, coded length with header)
    checksum: int = 0


def check16(data: bytes) -> bytes:
    """A 16-bit check of a piece of metadata."""
    return (xxhash.xxh3_64_intdigest(data) & 0xFFFF).to_bytes(2, "little")


def varint(value: int) -> bytes:
    """Unsigned LEB128."""
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_exactly(file: BinaryIO, count: int) -> bytes:
    """`count` bytes, which must already be known to be within a limit; pipes may give them in parts."""
    parts = []
    while count:
        part = file.read(min(count, _PIECE))
        if not part:
            raise TruncatedError(_CUT)
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def read_varint(file: BinaryIO) -> tuple[int, bytes]:
    """The value and the bytes it was read from."""
    value, seen = 0, b""
    while len(seen) < 9:
        byte = read_exactly(file, 1)
        value |= (byte[0] & 127) << (7 * len(seen))
        seen += byte
        if byte[0] < 128:
            return value, seen
    raise DamagedError("a length in the file is impossible: the file is damaged")


def header_bytes(header: dict) -> bytes:
    text = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    body = MAGIC + bytes([FORMAT_VERSION]) + varint(len(text)) + text
    return body + check16(body)


def read_header(file: BinaryIO) -> Header | None:
    """A stream's header; None where the file ends instead."""
    magic = file.read(len(MAGIC))
    if not magic:
        return None
    if magic != MAGIC[: len(magic)]:
        raise FormatError("not a .sqz file: it does not begin with the .sqz mark")
    magic += read_exactly(file, len(MAGIC) - len(magic))
    version = read_exactly(file, 1)
    if version[0] == SHORT_VERSION:
        return Header({"prior": read_exactly(file, _PRIOR_BYTES).hex()}, len(MAGIC) + 1 + _PRIOR_BYTES, True)
    if version[0] != FORMAT_VERSION:
        raise FormatError(f"format version {version[0]} is unknown: decompress with a newer squeeze")
    length, length_bytes = read_varint(file)
    if length > MAX_HEADER:
        raise DamagedError("the header's length is impossible: the file is damaged")
    text = read_exactly(file, length)
    body = magic + version + length_bytes + text
    if read_exactly(file, 2) != check16(body):
        raise DamagedError("the header is damaged: its checksum differs")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise DamagedError("the header is damaged: it is not JSON") from None
    if not isinstance(header, dict):
        raise DamagedError("the header is damaged: it is not a JSON object")
    numerics = header.get("numerics", NUMERICS_VERSION)
    if type(numerics) is not int or numerics != NUMERICS_VERSION:
        raise FormatError(f"numerics version {numerics} is unknown: decompress with a newer squeeze")
    return Header(header, len(body) + 2, False)


def block_header_bytes(kind: int, raw_length: int, payload_length: int, checksum: int) -> bytes:
    lengths = varint(raw_length) if kind == STORED else varint(raw_length) + varint(payload_length)
    body = bytes([kind]) + lengths + checksum.to_bytes(8, "little")
    return body + check16(body)


def read_block_header(file: BinaryIO) -> BlockHeader | None:
    """The next block's header; None at the tag that begins the index."""
    tag = read_exactly(file, 1)
    kind = tag[0]
    if kind == END:
        return None
    if kind not in CODECS:
        raise DamagedError(f"block kind {kind} is unknown: the file is damaged, or needs a newer squeeze")
    raw_length, seen = read_varint(file)
    body = tag + seen
    payload_length = raw_length
    if kind != STORED:
        payload_length, seen = read_varint(file)
        body += seen
    checksum = read_exactly(file, 8)
    body += checksum
    if read_exactly(file, 2) != check16(body):
        raise DamagedError("a block's header is damaged: its checksum differs")
    if kind != STORED and not 1 <= payload_length <= raw_length <= MAX_BLOCK:
        raise DamagedError("a block's lengths are impossible: the file is damaged")
    return BlockHeader(kind, raw_length, payload_length, int.from_bytes(checksum, "little"), len(body) + 2)


def short_stream_bytes(prior: str, raw: bytes, payload: bytes | None) -> bytes:
    """A short stream. `prior` is an identity in hexadecimal digits; without a payload the raw bytes are stored."""
    header = MAGIC + bytes([SHORT_VERSION]) + bytes.fromhex(prior)[:_PRIOR_BYTES]
    checksum = (xxhash.xxh3_64_intdigest(raw) & _SHORT_CHECKSUM).to_bytes(4, "little")
    return header + varint(len(raw)) + varint(len(payload or b"")) + checksum + (payload or raw)


def read_short_block_header(file: BinaryIO) -> BlockHeader:
    """What stands between the header of a short stream and its payload."""
    raw_length, seen = read_varint(file)
    payload_length, more = read_varint(file)
    checksum = read_exactly(file, 4)
    if not payload_length <= raw_length <= MAX_SHORT:
        raise DamagedError("a block's lengths are impossible: the file is damaged")
    kind = BYTEWISE if payload_length else STORED
    size = len(seen) + len(more) + len(checksum)
    return BlockHeader(kind, raw_length, payload_length or raw_length, int.from_bytes(checksum, "little"), size)


def is_checksum(digest: int, checksum: int, short: bool) -> bool:
    """Whether the XXH3-64 of raw bytes is what a block header says."""
    return (digest & _SHORT_CHECKSUM if short else digest) == checksum


def content_bytes(content: Content) -> bytes:
    """What the payload of a coded block begins with."""
    number = bytes([KINDS_OF_CONTENT.index(content.kind)])
    return number + varint(content.record) if content.kind == "table" else number


def read_content(file: BinaryIO) -> tuple[Content, int]:
    """The content at the start of a payload, and how many bytes name it."""
    number = read_exactly(file, 1)[0]
    if number >= len(KINDS_OF_CONTENT):
        raise DamagedError("a block's kind of content is unknown: the file is damaged")
    kind = KINDS_OF_CONTENT[number]
    if kind != "table":
        return Content(kind), 1
    record, seen = read_varint(file)
    if not 1 <= record < MAX_RECORD:
        raise DamagedError("a block's record length is impossible: the file is damaged")
    return Content(kind, record), 1 + len(seen)


def index_bytes(index: Index) -> bytes:
    body = bytes([END]) + varint(index.header_size)
    body += b"".join(varint(raw) + varint(coded) for raw, coded in index.entries)
    body += index.checksum.to_bytes(8, "little")
    tail = len(body).to_bytes(4, "little")
    return body + check16(body + tail) + tail + END_MARK


def _parse_index(body: bytes) -> Index:
    file = io.BytesIO(body[1:-8])
    index = Index(read_varint(file)[0], checksum=int.from_bytes(body[-8:], "little"))
    while file.tell() < len(body) - 9:
        raw, _ = read_varint(file)
        coded, _ = read_varint(file)
        if coded < _LEAST_BLOCK or raw > max(MAX_BLOCK, coded):
            raise DamagedError("the index is damaged: a block's lengths are impossible")
        index.entries.append((raw, coded))
    return index


def read_following_index(file: BinaryIO, written: Index) -> None:
    """Read the index after its tag, in a stream read from the front; it must agree with what was read."""
    expected = index_bytes(written)
    found = read_exactly(file, len(expected) - 1)
    if found[-2:] != END_MARK or found[:-2] != expected[1:-2]:
        raise DamagedError("the index does not agree with the blocks: the file is damaged")


def read_index_before(file: BinaryIO, end: int) -> tuple[Index, int]:
    """The index of the stream that ends at offset `end`, and where that stream starts."""
    if end < _FOOTER:
        raise TruncatedError(_CUT)
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
    index = _parse_index(body)
    start = end - _FOOTER - length - index.header_size - sum(coded for _, coded in index.entries)
    if start < 0:
        raise DamagedError("the index does not agree with the file's length: the file is damaged")
    return index, start


def read_index(file: BinaryIO) -> list[Stream]:
    """Every stream of a seekable .sqz file, without decoding: from the indexes, or from the front where there are
    short streams, which have none."""
    end = file.seek(0, io.SEEK_END)
    if end == 0:
        raise FormatError("not a .sqz file: it is empty")
    file.seek(0)
    first = read_header(file)  # a file that is not .sqz is named as such, whatever its end
    if first is not None and first.short:
        return _with_raw_offsets(_streams_from_front(file, end))
    try:
        return _with_raw_offsets(_streams_from_end(file, end))
    except FormatError as error:
        try:
            streams = _streams_from_front(file, end)
        except FormatError:
            streams = []
        if not any(stream.short for stream in streams):
            raise error from None
        return _with_raw_offsets(streams)


def _streams_from_end(file: BinaryIO, end: int) -> list[Stream]:
    streams: list[Stream] = []
    while end:
        index, start = read_index_before(file, end)
        streams.append(_stream(file, index, start, end))
        end = start
    return streams[::-1]


def _streams_from_front(file: BinaryIO, end: int) -> list[Stream]:
    streams, start = [], 0
    while start < end:
        file.seek(start)
        found = read_header(file)
        assert found is not None
        if found.short:
            header = read_short_block_header(file)
            block = _block(header, "stored" if header.kind == STORED else "prior", 0, start + found.size)
            finish = block.coded_offset + block.coded_length
            stream = Stream(found.fields, True, [block], start, finish - start, header.raw_length, header.checksum)
        else:
            index = _walk_blocks(file, found.size, end)
            stream = _stream(file, index, start, file.tell())
            finish = start + stream.coded_size
        if finish > end:
            raise TruncatedError(_CUT)
        streams.append(stream)
        start = finish
    return streams


def _walk_blocks(file: BinaryIO, header_size: int, end: int) -> Index:
    """The index of the stream whose header was just read, from its block headers; leaves the file at its end."""
    index = Index(header_size)
    while (header := read_block_header(file)) is not None:
        if header.payload_length > end - file.tell():
            raise TruncatedError(_CUT)
        index.entries.append((header.raw_length, header.size + header.payload_length))
        file.seek(header.payload_length, io.SEEK_CUR)
    length = len(index_bytes(index))
    body = bytes([END]) + read_exactly(file, length - 1)
    index.checksum = int.from_bytes(body[-_FOOTER - 8 : -_FOOTER], "little")
    if index_bytes(index) != body:
        raise DamagedError("the index does not agree with the blocks: the file is damaged")
    return index


def _block(header: BlockHeader, content: str, raw_offset: int, offset: int) -> Block:
    length = header.size + header.payload_length
    return Block(
        header.kind, content, raw_offset, header.raw_length, offset, length, header.payload_length, header.checksum
    )


def _stream(file: BinaryIO, index: Index, start: int, end: int) -> Stream:
    file.seek(start)
    found = read_header(file)
    if found is None or found.short or found.size != index.header_size:
        raise DamagedError("the index does not agree with the header: the file is damaged")
    blocks, offset, raw_offset = [], start + index.header_size, 0
    for raw, coded in index.entries:
        file.seek(offset)
        header = read_block_header(file)
        if header is None or header.raw_length != raw or header.size + header.payload_length != coded:
            raise DamagedError("the index does not agree with the blocks: the file is damaged")
        content = "stored" if header.kind == STORED else str(read_content(file)[0])
        blocks.append(_block(header, content, raw_offset, offset))
        offset += coded
        raw_offset += raw
    return Stream(found.fields, False, blocks, start, end - start, raw_offset, index.checksum)


def _with_raw_offsets(streams: list[Stream]) -> list[Stream]:
    """Raw offsets counted from the start of the file rather than of each stream."""
    placed, before = [], 0
    for stream in streams:
        blocks = [replace(block, raw_offset=block.raw_offset + before) for block in stream.blocks]
        placed.append(replace(stream, blocks=blocks))
        before += stream.raw_size
    return placed


def copy_pieces(source: BinaryIO, count: int) -> Iterator[bytes]:
    """`count` bytes of `source` in pieces of at most a mebibyte."""
    while count:
        piece = read_exactly(source, min(count, _PIECE))
        yield piece
        count -= len(piece)
