"""The .sqz format: reading and writing headers and blocks. docs/format.md specifies it; index.py has the index.

This module does not know how a block's bytes are coded. Every number read is checked against a limit before memory is
allocated for it.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple

import xxhash

from squeeze.codecs.content import ABSOLUTE, CODES, Content
from squeeze.errors import DamagedError, FormatError, TruncatedError, printable
from squeeze.system.binary import read_exactly, read_some, read_varint, varint

FORMAT = 1
NUMERICS = 1
MAGIC = b"\xf5\xac"
# The byte after the magic number, the form. A short stream is a single block with a header of a few bytes: its form has
# the level in the low half. The high half says whether the stream is bare, has a language model, and names the kind of
# its block. A record is a short stream that names a dictionary.
LONG, RECORD = FORMAT, 0x80
_FORMS = {  # whether the stream is bare, has a language model, and names the kind of its block
    0x10: (False, False, False),
    0x20: (False, False, True),
    0x30: (False, True, False),
    0x50: (True, False, False),
    0x60: (True, False, True),
    0x70: (False, True, True),
}
END_MARK = b"QS"

PADDING = 4  # zeros after a stream come in multiples of 4 bytes, as in .xz files
BAD_PADDING = f"the padding after a stream is not a multiple of {PADDING} bytes: the file was cut off or damaged there"
END, STORED, BYTEWISE, TOKENWISE, SPLIT, OPENED, IMAGE, JPEG, REPEATS = range(9)
SOUND, ARRAY = 10, 11
CODECS = {
    STORED: "stored",
    BYTEWISE: "bytewise",
    TOKENWISE: "tokenwise",
    SPLIT: "split",
    OPENED: "opened",
    IMAGE: "image",
    JPEG: "jpeg",
    REPEATS: "repeats",
    SOUND: "sound",
    ARRAY: "array",
}
BY_LANGUAGE = (TOKENWISE, SPLIT)  # kinds of blocks that need a language model
WITH_RUNS = (BYTEWISE, TOKENWISE, SPLIT)  # kinds of blocks from which runs may be removed

MAX_HEADER = 1 << 16
_OF_NOTHING = xxhash.xxh3_64_intdigest(b"")
_MOST_VALUES, _DEEPEST = 64, 4  # values of a header, and their nesting
MAX_SHORT = (1 << 16) - 1  # raw bytes of a short stream
MAX_BLOCK = 1 << 28  # raw bytes of a coded block; a stored block may have any length
_IDENTITY_BYTES = 4  # bytes of a language model's SHA-256 in a short stream
_RECORD_IDENTITY_BYTES = 2  # bytes of a dictionary's SHA-256 in a record; the checksum finds a wrong dictionary
_SHORT_CHECKSUM = (1 << 32) - 1

KINDS_OF_CONTENT = {"other": 0, "text": 1, "executable": 2, "table": 3, "lines": 7, "cells": 8}
KINDS_OF_CONTENT |= {kind: 9 + number for number, kind in enumerate(CODES)}
WITH_RECORDS = "table", "cells", *CODES  # kinds of content that have a record length
_KIND_OF = {number: kind for kind, number in KINDS_OF_CONTENT.items()}
_ABSOLUTE = 6  # the number of machine code without a filter
RUNS, RAW = b"\x04", b"\x05"  # before a content: runs were removed; instead of one: the bytes are stored
MAX_RECORD = 1 << 16
MOST_WINDOW = 40  # bits of the most bytes between a block and a source of its copies


class ForeignError(FormatError):
    """A file does not begin with the magic number of a stream."""


class TrailingError(FormatError):
    """A stream is followed by bytes that are not a stream."""

    @classmethod
    def after(cls, place: int) -> "TrailingError":
        """Return the error for a file whose streams end at byte `place`."""
        return cls(f"the bytes after the first {place:,} are not a .sqz stream: cut them off")


class Header(NamedTuple):
    """The header of a stream."""

    fields: dict[str, Any]
    size: int  # in bytes
    short: bool
    named: int | None = None  # the kind of the block in a short stream, if it is not the usual one

    @property
    def names_content(self) -> bool:
        """True if the header names a dictionary that fixes the content, so that the payload does not."""
        return self.short and "dictionary" in self.fields

    @property
    def kind(self) -> int:
        """The kind of the coded block in a short stream."""
        return self.named or usual_kind("weights" in self.fields)


def usual_kind(with_model: bool) -> int:
    """Return the kind of block that a short stream with or without a language model need not name."""
    return TOKENWISE if with_model else BYTEWISE


@dataclass(frozen=True)
class Coded:
    """The kind and payload of a coded block, and whether it was decoded and compared as it was coded."""

    kind: int
    payload: bytes
    is_verified: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class BlockHeader:
    """The header of a block."""

    kind: int
    raw_length: int
    payload_length: int
    checksum: int
    size: int  # bytes of the header itself


def check16(data: bytes) -> bytes:
    """Return a 16-bit checksum of metadata."""
    return (xxhash.xxh3_64_intdigest(data) & 0xFFFF).to_bytes(2, "little")


def header_bytes(header: dict[str, Any]) -> bytes:
    """Return the header of a long stream."""
    text = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    body = MAGIC + bytes([LONG]) + varint(len(text)) + text
    return body + check16(body)


def read_header(file: BinaryIO, padded: bool = False) -> Header | None:
    """Read a stream's header, or return None at the end of the file.

    Args:
        file: at the start of a stream.
        padded: whether padding with zeros may come first, as after another stream.

    Raises:
        FormatError: if the header is not one that this version reads.
    """
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
    """Return the first byte after padding, or nothing at the end of the file."""
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
    """Read the rest of a long stream's header, after the byte of its form."""
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
        raise DamagedError("the header is damaged: it has too many values")
    numerics = header.get("numerics", NUMERICS)
    if type(numerics) is not int or numerics != NUMERICS:
        raise FormatError(f"numerics version {printable(numerics)} is unknown: decompress with a newer squeeze")
    return Header(header, len(body) + 2, False)


def _short_header(form: int, file: BinaryIO) -> Header:
    """Read the rest of a short stream's header, after the byte of its form."""
    before = len(MAGIC) + 1
    if form & RECORD:
        identity = bytes([form]) + read_exactly(file, _RECORD_IDENTITY_BYTES - 1)
        return Header({"dictionary": identity.hex()}, before - 1 + len(identity), True)
    if form & 0xF0 not in _FORMS:
        raise FormatError(f"form {form} of a stream is unknown: decompress with a newer squeeze")
    bare, with_model, names_kind = _FORMS[form & 0xF0]
    fields: dict[str, Any] = {"level": form & 15, "numerics": NUMERICS}
    if bare:
        fields["bare"] = True
    if with_model:
        fields["weights"] = read_exactly(file, _IDENTITY_BYTES).hex()
    kind = read_exactly(file, 1)[0] if names_kind else None
    if kind is not None and (kind not in CODECS or kind in (STORED, usual_kind(with_model))):
        raise DamagedError(f"block kind {kind} is unknown: the file is damaged, or needs a newer squeeze")
    return Header(fields, before + with_model * _IDENTITY_BYTES + names_kind, True, kind)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _is_plain(header: dict[str, Any]) -> bool:
    """Return whether a header has few values and little nesting."""
    values: list[Any] = [header]
    for _ in range(_DEEPEST):
        values = [value for one in values if isinstance(one, (dict, list)) for value in _parts(one)]
        if not values or len(values) > _MOST_VALUES:
            break
    return not values


def _parts(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def block_header_bytes(kind: int, raw_length: int, payload_length: int, checksum: int) -> bytes:
    """Return the header of a block in a long stream.

    Args:
        kind: a key of CODECS.
        raw_length: raw bytes.
        payload_length: coded bytes; not written for a stored block.
        checksum: XXH3-64 of the raw bytes.
    """
    lengths = varint(raw_length) if kind == STORED else varint(raw_length) + varint(payload_length)
    body = bytes([kind]) + lengths + checksum.to_bytes(8, "little")
    return body + check16(body)


def read_block_header(file: BinaryIO) -> BlockHeader | None:
    """Read the next block's header, or return None at the tag that starts the index."""
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
    if not 1 <= payload_length <= raw_length or (kind != STORED and raw_length > MAX_BLOCK):
        raise DamagedError("a block's lengths are impossible: the file is damaged")
    return BlockHeader(kind, raw_length, payload_length, int.from_bytes(checksum, "little"), len(body) + 2)


def record_identity(identity: str) -> str:
    """Return the bytes of a dictionary's identity that a record has, with the high bit set; both in hexadecimal."""
    first, *others = bytes.fromhex(identity)[:_RECORD_IDENTITY_BYTES]
    return bytes([first | RECORD, *others]).hex()


def short_header_bytes(
    level: int, bare: bool, dictionary: str | None, model: str | None, kind: int | None = None
) -> bytes:
    """Return the header of a short stream.

    Args:
        level: 1 to 9.
        bare: whether no built-in weights are used.
        dictionary: identity of a dictionary in hexadecimal, which replaces the level, or None.
        model: identity of a language model in hexadecimal, or None.
        kind: of the block, or None for the usual one.
    """
    if dictionary:
        return MAGIC + bytes.fromhex(record_identity(dictionary))
    named = None if kind in (None, STORED, usual_kind(model is not None)) else kind
    form = next(form for form, flags in _FORMS.items() if flags == (bare, model is not None, named is not None))
    identity = bytes.fromhex(model)[:_IDENTITY_BYTES] if model else b""
    return MAGIC + bytes([form | level]) + identity + bytes([named] if named else [])


def short_stream_bytes(header: bytes, raw: bytes, payload: bytes | None) -> bytes:
    """Return a short stream.

    Args:
        header: of `short_header_bytes`.
        raw: the raw bytes.
        payload: the coded bytes, or None to store the raw bytes.
    """
    checksum = (xxhash.xxh3_64_intdigest(raw) & _SHORT_CHECKSUM).to_bytes(4, "little")
    return header + varint(len(raw)) + varint(len(payload or b"")) + checksum + (payload or raw)


def read_short_block_header(file: BinaryIO, coded: int) -> BlockHeader:
    """Read the block header of a short stream. `coded` is the block's kind unless it is stored."""
    raw_length, encoded_raw = read_varint(file)
    payload_length, encoded_payload = read_varint(file)
    checksum = read_exactly(file, 4)
    if not payload_length <= raw_length <= MAX_SHORT:
        raise DamagedError("a block's lengths are impossible: the file is damaged")
    if raw_length == 0 and not matches_checksum(_OF_NOTHING, int.from_bytes(checksum, "little"), short=True):
        raise DamagedError("a block's checksum differs: the file is damaged")  # readers of ranges would not see it
    kind = coded if payload_length else STORED
    size = len(encoded_raw) + len(encoded_payload) + len(checksum)
    return BlockHeader(kind, raw_length, payload_length or raw_length, int.from_bytes(checksum, "little"), size)


def matches_checksum(digest: int, checksum: int, short: bool) -> bool:
    """Return whether the checksum of raw bytes is that of a block header.

    Args:
        digest: XXH3-64 of the raw bytes.
        checksum: that of the header.
        short: whether it is of a short stream, which has the low 32 bits.
    """
    return (digest & _SHORT_CHECKSUM if short else digest) == checksum


def content_bytes(content: Content) -> bytes:
    """Return the bytes with which the payload of a coded block names its content."""
    number = bytes([_ABSOLUTE if content.form == ABSOLUTE else KINDS_OF_CONTENT[content.kind]])
    return number + varint(content.record) if content.record else number


def read_content(file: BinaryIO) -> tuple[Content, int]:
    """Read the content at the start of a payload; return it and the number of bytes read."""
    number = read_exactly(file, 1)[0]
    if number == _ABSOLUTE:
        return Content("executable", 0, ABSOLUTE), 1
    if number not in _KIND_OF:
        raise DamagedError("a block's kind of content is unknown: the file is damaged")
    kind = _KIND_OF[number]
    if kind not in WITH_RECORDS:
        return Content(kind), 1
    record, encoded = read_varint(file)
    if not 1 <= record < MAX_RECORD:
        raise DamagedError("a block's record length is impossible: the file is damaged")
    return Content(kind, record), 1 + len(encoded)
