"""The .sqz format: reading and writing headers and blocks. docs/format.md specifies it; index.py has its index.

This module knows nothing of how a block's bytes are coded. Everything read is
checked against a limit before memory is taken for it.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import xxhash

from squeeze.errors import DamagedError, FormatError, TruncatedError, printable
from squeeze.system.pipes import read_some
from squeeze.system.varint import read_exactly, read_varint, varint

FORMAT = 1
NUMERICS = 1
MAGIC = b"\xf5\xac"
# The byte after the magic number. A short stream is one block with next to nothing around it: its form names the level
# in the low half, and what the models are in the high half. A record is a short stream by a dictionary.
LONG, SHORT, WITH_MODEL, BARE, RECORD = FORMAT, 0x10, 0x20, 0x40, 0x80
END_MARK = b"QS"

PADDING = 4  # bytes: zeros after a stream come in multiples of so many, as in .xz files
BAD_PADDING = f"the zeros after a stream are no multiple of {PADDING} bytes: the file was cut off or damaged there"
END, STORED, BYTEWISE, TOKENWISE, SPLIT = 0, 1, 2, 3, 4
CODECS = {STORED: "stored", BYTEWISE: "bytewise", TOKENWISE: "tokenwise", SPLIT: "split"}
BY_LANGUAGE = (TOKENWISE, SPLIT)  # what needs a language model

MAX_HEADER = 1 << 16
_MOST_VALUES, _DEEPEST = 64, 4  # in a header: its values, and how far they are nested
MAX_SHORT = (1 << 16) - 1  # raw bytes of a short stream
MAX_BLOCK = 1 << 28  # raw bytes of a coded block; a stored block may have any length
_IDENTITY_BYTES = 4  # of the SHA-256 of a language model in a short stream
_RECORD_IDENTITY_BYTES = 2  # of a dictionary's in a record: what the wrong one makes of it has another checksum
_SHORT_CHECKSUM = (1 << 32) - 1

KINDS_OF_CONTENT = ("other", "text", "executable", "table")
RUNS, RAW = b"\x04", b"\x05"  # what stands before a content: runs that were taken out; in its place: bytes as they are
MAX_RECORD = 1 << 16


@dataclass(frozen=True)
class Content:
    """What a block seems to hold, which decides its contexts: a table has a record length in bytes."""

    kind: str
    record: int = 0

    def __str__(self) -> str:
        return f"table {self.record}" if self.record else self.kind


class ForeignError(FormatError):
    """What should be a stream does not begin as one."""


class TrailingError(FormatError):
    """Something that is no stream follows a stream."""

    @classmethod
    def after(cls, place: int) -> "TrailingError":
        """Return what is said of a file whose streams end at a place."""
        return cls(f"what follows its first {place:,} bytes is no .sqz stream: cut it off")


class Header(NamedTuple):
    """What a stream begins with."""

    fields: dict[str, Any]
    size: int  # in bytes
    short: bool

    @property
    def names_content(self) -> bool:
        """Whether it names a dictionary that says what a block holds, so that the payload does not."""
        return self.short and "dictionary" in self.fields

    @property
    def kind(self) -> int:
        """Of the coded block of a short stream."""
        return TOKENWISE if "weights" in self.fields else BYTEWISE


@dataclass(frozen=True)
class BlockHeader:
    kind: int
    raw_length: int
    payload_length: int
    checksum: int
    size: int  # bytes of the header itself


def check16(data: bytes) -> bytes:
    """A 16-bit check of a piece of metadata."""
    return (xxhash.xxh3_64_intdigest(data) & 0xFFFF).to_bytes(2, "little")


def header_bytes(header: dict[str, Any]) -> bytes:
    text = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    body = MAGIC + bytes([LONG]) + varint(len(text)) + text
    return body + check16(body)


def read_header(file: BinaryIO, padded: bool = False) -> Header | None:
    """A stream's header; None where the file ends instead. padded: whether zeros may stand before it, as they may after
    another stream."""
    magic = _past_padding(file) if padded else read_some(file, 1)
    if not magic:
        return None
    if magic == MAGIC[:1]:
        magic += read_exactly(file, 1)
    if magic != MAGIC:
        raise ForeignError("not a .sqz file: it does not begin with the .sqz mark")
    form = read_exactly(file, 1)
    return _long_header(file) if form[0] == LONG else _short_header(form[0], file)


def _past_padding(file: BinaryIO) -> bytes:
    """Return the first byte that is no padding; none at the end of the file."""
    magic = read_some(file, 1)
    while magic == b"\0":
        try:
            zeros = read_exactly(file, PADDING - 1)
        except TruncatedError:
            zeros = b""
        if any(zeros) or not zeros:
            raise FormatError(BAD_PADDING)
        magic = read_some(file, 1)
    return magic


def _long_header(file: BinaryIO) -> Header:
    """Return the header of a long stream by what follows its form."""
    length, length_bytes = read_varint(file)
    if length > MAX_HEADER:
        raise DamagedError("the header's length is impossible: the file is damaged")
    text = read_exactly(file, length)
    body = MAGIC + bytes([LONG]) + length_bytes + text
    if read_exactly(file, 2) != check16(body):
        raise DamagedError("the header is damaged: its checksum differs")
    try:
        header = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise DamagedError("the header is damaged: it is not JSON") from None
    if not isinstance(header, dict):
        raise DamagedError("the header is damaged: it is not a JSON object")
    if not _is_plain(header):
        raise DamagedError("the header is damaged: it holds more than a header does")
    numerics = header.get("numerics", NUMERICS)
    if type(numerics) is not int or numerics != NUMERICS:
        raise FormatError(f"numerics version {printable(numerics)} is unknown: decompress with a newer squeeze")
    return Header(header, len(body) + 2, False)


def _short_header(form: int, file: BinaryIO) -> Header:
    """Return the header of a short stream by its form, and by what follows that in the file."""
    before = len(MAGIC) + 1
    if form & RECORD:
        identity = bytes([form]) + read_exactly(file, _RECORD_IDENTITY_BYTES - 1)
        return Header({"dictionary": identity.hex()}, before - 1 + len(identity), True)
    if not form & SHORT:
        raise FormatError(f"form {form} of a stream is unknown: decompress with a newer squeeze")
    fields: dict[str, Any] = {"level": form & 15, "numerics": NUMERICS}
    if form & BARE:
        fields["bare"] = True
    if not form & WITH_MODEL:
        return Header(fields, before, True)
    fields["weights"] = read_exactly(file, _IDENTITY_BYTES).hex()
    return Header(fields, before + _IDENTITY_BYTES, True)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _is_plain(header: dict[str, Any]) -> bool:
    """Whether it has the shape of a header: few values, none of them deep."""
    values: list[Any] = [header]
    for _ in range(_DEEPEST):
        values = [value for one in values if isinstance(one, (dict, list)) for value in _parts(one)]
        if not values or len(values) > _MOST_VALUES:
            break
    return not values


def _parts(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


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
    raw_length, encoded = read_varint(file)
    body = tag + encoded
    payload_length = raw_length
    if kind != STORED:
        payload_length, encoded = read_varint(file)
        body += encoded
    checksum = read_exactly(file, 8)
    body += checksum
    if read_exactly(file, 2) != check16(body):
        raise DamagedError("a block's header is damaged: its checksum differs")
    if kind != STORED and not 1 <= payload_length <= raw_length <= MAX_BLOCK:
        raise DamagedError("a block's lengths are impossible: the file is damaged")
    return BlockHeader(kind, raw_length, payload_length, int.from_bytes(checksum, "little"), len(body) + 2)


def record_identity(identity: str) -> str:
    """Return what a record says of a dictionary's identity, both in hexadecimal digits: the high bit is set."""
    first, *others = bytes.fromhex(identity)[:_RECORD_IDENTITY_BYTES]
    return bytes([first | RECORD, *others]).hex()


def short_header_bytes(level: int, bare: bool, dictionary: str | None, model: str | None) -> bytes:
    """Return what a short stream begins with: a level, with the identity of a language model or without, or the
    identity of a dictionary, in hexadecimal digits."""
    if dictionary:
        return MAGIC + bytes.fromhex(record_identity(dictionary))
    form = SHORT | level | (BARE if bare else 0)
    if model:
        return MAGIC + bytes([form | WITH_MODEL]) + bytes.fromhex(model)[:_IDENTITY_BYTES]
    return MAGIC + bytes([form])


def short_stream_bytes(header: bytes, raw: bytes, payload: bytes | None) -> bytes:
    """A short stream; without a payload the raw bytes are stored."""
    checksum = (xxhash.xxh3_64_intdigest(raw) & _SHORT_CHECKSUM).to_bytes(4, "little")
    return header + varint(len(raw)) + varint(len(payload or b"")) + checksum + (payload or raw)


def read_short_block_header(file: BinaryIO, coded: int) -> BlockHeader:
    """What stands between the header of a short stream and its payload. coded: the kind of its block, if not stored."""
    raw_length, encoded_raw = read_varint(file)
    payload_length, encoded_payload = read_varint(file)
    checksum = read_exactly(file, 4)
    if not payload_length <= raw_length <= MAX_SHORT:
        raise DamagedError("a block's lengths are impossible: the file is damaged")
    kind = coded if payload_length else STORED
    size = len(encoded_raw) + len(encoded_payload) + len(checksum)
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
    record, encoded = read_varint(file)
    if not 1 <= record < MAX_RECORD:
        raise DamagedError("a block's record length is impossible: the file is damaged")
    return Content(kind, record), 1 + len(encoded)
