"""A file that several workers compress: each codes a part, and one puts the parts together to the stream that
`compress_stream` writes.

A part has blocks as they are in that stream. One more worker finds the checksums of the source meanwhile: so the one
that puts the parts together reads no more than them, and less where a store copies them.
"""

from collections.abc import Iterable
from itertools import zip_longest
from typing import BinaryIO, cast

import xxhash

from squeeze.codecs.stream.compressor import coded_blocks
from squeeze.codecs.stream.decoding import Progress
from squeeze.codecs.stream.resources import Totals
from squeeze.codecs.stream.settings import Settings, to_header
from squeeze.codecs.stream.writer import BlockWriter, Writer, Written
from squeeze.errors import FormatError, VerifyError
from squeeze.system.part_file import PartFile, PartWriter, damaged
from squeeze.system.varint import copy_pieces

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
    """Write the part of `length` raw bytes from `begin` on, which is a multiple of the block size, of a file of at
    least `size` bytes. Raises VerifyError where the file has become shorter."""
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
    """The XXH3-64 of a source of `size` bytes, and after it that of each of its parts of `length` bytes, of which the
    last may be shorter. Raises VerifyError where the source has another size."""
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
    return _DIGEST * (1 - (-size // length))


def join(parts: Iterable[BinaryIO], known: bytes, sink: BinaryIO, settings: Settings) -> Totals:
    """Write the stream of a file whose parts are given in order. known: its `checksums`. Raises VerifyError where the
    file is not what the parts were coded from, and DamagedError where they are damaged."""
    writer = Writer(sink, to_header(settings))
    whole, *expected = (int.from_bytes(known[place : place + _DIGEST]) for place in range(0, len(known), _DIGEST))
    for file, checksum in zip_longest(parts, expected):
        if file is None or checksum is None:
            raise damaged()
        part = PartFile(file)
        found, blocks = part.description
        if found != checksum:
            raise _changed()
        writer.write_part([Written(*block) for block in blocks], part)
        part.check()
    return writer.finish(whole)


def _changed() -> VerifyError:
    return VerifyError("the input changed while it was read: compress it again when nothing writes to it")


class _Bounded:
    """So many bytes of a source, from where it stands."""

    def __init__(self, source: BinaryIO, length: int):
        self._source, self._left = source, length

    def read(self, size: int) -> bytes:
        data = self._source.read(min(size, self._left))
        self._left -= len(data)
        return data
