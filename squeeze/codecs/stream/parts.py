"""A file that several workers compress: each codes a part, and one puts the parts together to the stream that
`compress_stream` writes.

A part is a file of its own for that time: of each block its header as in a stream, followed by the payload of a coded
block, and by nothing where a block is stored; then the tag that ends a stream's blocks, and the XXH3-64 of all before.
"""

import io
from collections.abc import Iterable, Iterator
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

__all__ = ["code_part", "is_whole", "join"]

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
    digest, written, raw = xxhash.xxh3_64(), 0, 0
    for data, coded in coded_blocks(cast(BinaryIO, _Bounded(source, length)), settings, size, verify, progress):
        kind, payload = (coded.kind, coded.payload) if coded else (container.STORED, b"")
        checksum = xxhash.xxh3_64_intdigest(data.data)
        piece = container.block_header_bytes(kind, data.size, len(payload), checksum) + payload
        digest.update(piece)
        written += sink.write(piece)
        raw += data.size
    if raw != length:
        raise _changed()
    digest.update(bytes([container.END]))
    return written + sink.write(bytes([container.END]) + digest.digest())


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


def join(source: BinaryIO, parts: Iterable[BinaryIO], sink: BinaryIO, settings: Settings) -> Totals:
    """Write the stream of a file whose parts are given in order. Raises VerifyError where the file is not what the
    parts were coded from, and DamagedError where they are damaged."""
    source.seek(0)
    writer = Writer(source, sink, to_header(settings))
    for part in parts:
        for header, payload in _records(part):
            data = np.frombuffer(_taken(source, header.raw_length), np.uint8)
            if xxhash.xxh3_64_intdigest(data.data) != header.checksum:
                raise _changed()
            writer.write_block(data, None if payload is None else Coded(header.kind, payload))
    if source.read(1):
        raise _changed()
    return writer.finish()


def _records(part: BinaryIO) -> Iterator[tuple[BlockHeader, bytes | None]]:
    """Headers of blocks with their payloads; None where they are stored."""
    if not is_whole(part):
        raise DamagedError("a part of the compressed file is damaged: compress it again")
    part.seek(0)
    while (header := container.read_block_header(part)) is not None:
        stored = header.kind == container.STORED
        yield header, None if stored else read_exactly(part, header.payload_length)


def _taken(source: BinaryIO, length: int) -> bytes:
    try:
        return read_exactly(source, length)
    except FormatError:
        raise _changed() from None


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
