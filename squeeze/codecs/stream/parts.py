"""Compressing one file in several workers: each codes a part, and one joins the parts to the stream of
`compress_stream`.

A part has the blocks of that stream. Another worker computes the source's checksums meanwhile, so the one that joins
reads only the parts, or less if an object store copies them.
"""

from collections.abc import Iterable
from itertools import zip_longest
from typing import BinaryIO, cast

import xxhash

from squeeze.codecs.stream.compressor import coded_blocks
from squeeze.codecs.stream.decoding import Progress
from squeeze.codecs.stream.resources import Totals
from squeeze.codecs.stream.settings import Settings, to_header
from squeeze.codecs.stream.writer import BlockWriter, Writer, WrittenBlock
from squeeze.errors import FormatError, VerifyError
from squeeze.system.binary import copy_pieces
from squeeze.system.part_file import PartFile, PartWriter, damaged

__all__ = ["checksums", "code_part", "join", "size_of_checksums"]

_DIGEST = 8


def code_part(
    source: BinaryIO,
    begin: int,
    length: int,
    sink: BinaryIO,
    settings: Settings,
    size: int,
    verify: bool = True,
    progress: Progress = None,
) -> None:
    """Code a part of a file that is longer than a block.

    Args:
        source: the seekable file.
        begin: first raw byte of the part, a multiple of `size`.
        length: raw bytes of the part.
        sink: the part's file.
        settings: how to code.
        size: most raw bytes of a block.
        verify: decode every block again and compare.
        progress: is called with the number of raw bytes done since its last call.

    Raises:
        VerifyError: if the file has become shorter.
    """
    source.seek(begin)
    part = PartWriter(sink)
    writer = BlockWriter(cast(BinaryIO, part))
    for data, coded in coded_blocks(cast(BinaryIO, _Bounded(source, length)), settings, size, verify, progress):
        writer.write_block(data, coded)
    checksum = writer.end()
    if sum(block.raw for block in writer.blocks) != length:
        raise _changed()
    part.finish([checksum, writer.blocks])


def checksums(source: BinaryIO, size: int, length: int) -> bytes:
    """Return the XXH3-64 of a source, followed by those of its parts.

    Args:
        source: the seekable file.
        size: its bytes.
        length: bytes of a part; the last may be shorter.

    Raises:
        VerifyError: if the source has another size.
    """
    source.seek(0)
    whole, found = xxhash.xxh3_64(), bytearray()
    for begin in range(0, size, length):
        part = xxhash.xxh3_64()
        try:
            for piece in copy_pieces(source, min(length, size - begin)):
                whole.update(piece)
                part.update(piece)
        except FormatError:
            raise _changed() from None
        found += part.digest()
    if source.read(1):
        raise _changed()
    return whole.digest() + bytes(found)


def size_of_checksums(size: int, length: int) -> int:
    """Return the bytes that `checksums` returns."""
    return _DIGEST * (1 - (-size // length))


def join(parts: Iterable[BinaryIO], known: bytes, sink: BinaryIO, settings: Settings) -> Totals:
    """Write the stream of a file from its parts.

    Args:
        parts: the parts' files in order.
        known: the `checksums` of the file.
        sink: the file to write.
        settings: those of the parts.

    Raises:
        VerifyError: if the file changed while parts were coded.
        DamagedError: if a part is damaged.
    """
    writer = Writer(sink, to_header(settings))
    whole, *expected = (int.from_bytes(known[place : place + _DIGEST]) for place in range(0, len(known), _DIGEST))
    for file, checksum in zip_longest(parts, expected):
        if file is None or checksum is None:
            raise damaged()
        part = PartFile(file)
        found, blocks = part.description
        if found != checksum:
            raise _changed()
        writer.write_part([WrittenBlock(*block) for block in blocks], part)
        part.check()
    return writer.finish(whole)


def _changed() -> VerifyError:
    return VerifyError("the input changed while it was read: compress it again when nothing writes to it")


class _Bounded:
    """The next `length` bytes of a source."""

    def __init__(self, source: BinaryIO, length: int):
        self._source, self._remaining = source, length

    def read(self, size: int) -> bytes:
        data = self._source.read(min(size, self._remaining))
        self._remaining -= len(data)
        return data
