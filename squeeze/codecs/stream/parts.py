"""A file that several workers compress: each codes a part, and one puts the parts together to the stream that
`compress_stream` writes.

A part is a file of its own for that time: of each block its header as in a stream, followed by the payload of a coded
block, and by nothing where a block is stored; then the tag that ends a stream's blocks, the XXH3-64 of the raw bytes,
and that of all before. One more worker finds the checksums of the source meanwhile: so the one that puts the parts
together reads them alone, and of the source what is stored.
"""

import io
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import BinaryIO, cast

import numpy as np
import xxhash

from squeeze.codecs.stream import container
from squeeze.codecs.stream.coding import Coded, Progress
from squeeze.codecs.stream.compressor import coded_blocks
from squeeze.codecs.stream.container import BlockHeader
from squeeze.codecs.stream.header import to_header
from squeeze.codecs.stream.settings import Settings
from squeeze.codecs.stream.totals import Totals
from squeeze.codecs.stream.writer import Writer
from squeeze.codecs.varint import copy_pieces, read_exactly
from squeeze.errors import DamagedError, FormatError, VerifyError

__all__ = ["FORMAT", "checksums", "code_part", "is_whole", "join", "size_of_checksums"]

FORMAT = 2  # of parts
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
) -> int:
    """Write the part of `length` raw bytes from `begin` on, which is a multiple of the block size, of a file of at
    least `size` bytes; the bytes written. Raises VerifyError where the file has become shorter."""
    source.seek(begin)
    digest, of_raw, written, raw = xxhash.xxh3_64(), xxhash.xxh3_64(), 0, 0
    for data, coded in coded_blocks(cast(BinaryIO, _Bounded(source, length)), settings, size, verify, progress):
        kind, payload = (coded.kind, coded.payload) if coded else (container.STORED, b"")
        checksum = xxhash.xxh3_64_intdigest(data.data)
        piece = container.block_header_bytes(kind, data.size, len(payload), checksum) + payload
        digest.update(piece)
        of_raw.update(data.data)
        written += sink.write(piece)
        raw += data.size
    if raw != length:
        raise _changed()
    end = bytes([container.END]) + of_raw.digest()
    digest.update(end)
    return written + sink.write(end + digest.digest())


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


def is_whole(part: BinaryIO) -> bool:
    """Whether a part was written to its end, and has not changed since."""
    length = part.seek(0, io.SEEK_END) - _DIGEST
    if length < 1:
        return False
    part.seek(0)
    digest = xxhash.xxh3_64()
    for piece in copy_pieces(part, length):
        digest.update(piece)
    return part.read() == digest.digest()


def join(source: BinaryIO, parts: Iterable[BinaryIO], known: bytes, sink: BinaryIO, settings: Settings) -> Totals:
    """Write the stream of a file whose parts are given in order. known: its `checksums`. Raises VerifyError where the
    file is not what the parts were coded from, and DamagedError where they are damaged."""
    writer, raw = Writer(sink, to_header(settings)), 0
    whole, *expected = (known[place : place + _DIGEST] for place in range(0, len(known), _DIGEST))
    for part, checksum in zip_longest(parts, expected):
        if part is None or checksum is None:
            raise _damaged()
        reading = _Part(part)
        for header, payload in reading.records():
            if payload is None:
                source.seek(raw)
                data = np.frombuffer(_taken(source, header.raw_length), np.uint8)
                if xxhash.xxh3_64_intdigest(data.data) != header.checksum:
                    raise _changed()
                writer.write_block(data, None)
            else:
                writer.write_coded(Coded(header.kind, payload), header.raw_length, header.checksum)
            raw += header.raw_length
        if reading.of_raw != checksum:
            raise _changed()
    return writer.finish(int.from_bytes(whole))


class _Part:
    """A part that is read once. of_raw: the XXH3-64 of its raw bytes, known at its end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest, self.of_raw = file, xxhash.xxh3_64(), b""

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._digest.update(data)
        return data

    def records(self) -> Iterator[tuple[BlockHeader, bytes | None]]:
        """Headers of blocks with their payloads; None where they are stored. Raises DamagedError, at the end at the
        latest."""
        source = cast(BinaryIO, self)
        try:
            while (header := container.read_block_header(source)) is not None:
                stored = header.kind == container.STORED
                yield header, None if stored else read_exactly(source, header.payload_length)
            self.of_raw = read_exactly(source, _DIGEST)
        except FormatError:
            raise _damaged() from None
        if self._file.read() != self._digest.digest():
            raise _damaged()


def _taken(source: BinaryIO, length: int) -> bytes:
    try:
        return read_exactly(source, length)
    except FormatError:
        raise _changed() from None


def _damaged() -> DamagedError:
    return DamagedError("a part of the compressed file is damaged: compress it again")


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
