"""Writing one stream: its header, blocks, and index."""

import io
from collections.abc import Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import xxhash

from squeeze.codecs.stream import container
from squeeze.codecs.stream.decoding import Coded
from squeeze.codecs.stream.index import Index, index_bytes
from squeeze.codecs.stream.resources import Totals
from squeeze.system.part_file import PartFile, damaged
from squeeze.system.pipes import write_all

_STORED = 1 << 20  # raw bytes of a stored block at most: a reader checks all of one for a byte of it


class Written(NamedTuple):
    """A block that was written. coded: bytes with its header."""

    stored: bool
    raw: int
    coded: int


class BlockWriter:
    """Writes blocks. Stored bytes that follow each other share some, so that short runs cost one header."""

    def __init__(self, sink: BinaryIO):
        self._sink, self._hash = sink, xxhash.xxh3_64()
        self.blocks: list[Written] = []
        self._waiting = bytearray()  # to be stored, less than a block

    def write_block(self, data: np.ndarray, coded: Coded | None) -> None:
        self._hash.update(data.data)
        if coded:
            self._store(len(self._waiting))
            self._put_block(coded.kind, data.size, xxhash.xxh3_64_intdigest(data.data), coded.payload)
        else:
            self._wait(data.data)

    def write_part(self, blocks: Sequence[Written], part: PartFile) -> None:
        """Blocks that were written to a part. Of those at its ends that are stored the raw bytes are read, since they
        share blocks with what comes before and after them. Raises DamagedError."""
        begin, end = 0, len(blocks)
        while self._waiting and begin < end and blocks[begin].stored:
            self._wait(_stored(part.read(blocks[begin].coded)))
            begin += 1
        if begin < end and blocks[-1].stored and blocks[-1].raw < _STORED:
            end -= 1
        if begin < end:
            self._store(len(self._waiting))
            self._begin()
            part.pass_on(sum(block.coded for block in blocks[begin:end]), self._sink)
            self.blocks += blocks[begin:end]
        for block in blocks[end:]:
            self._wait(_stored(part.read(block.coded)))

    def end(self) -> int:
        """Write what waits; the checksum of all that was given to `write_block`."""
        self._store(len(self._waiting))
        return self._hash.intdigest()

    def _begin(self) -> None:
        """Before the first block."""

    def _wait(self, data: Any) -> None:
        self._waiting += data
        self._store(len(self._waiting) // _STORED * _STORED)

    def _store(self, length: int) -> None:
        """Write so many of the waiting bytes."""
        for begin in range(0, length, _STORED):
            block = bytes(self._waiting[begin : min(begin + _STORED, length)])
            self._put_block(container.STORED, len(block), xxhash.xxh3_64_intdigest(block), block)
        del self._waiting[:length]

    def _put_block(self, kind: int, raw: int, checksum: int, payload: bytes) -> None:
        self._begin()
        header = container.block_header_bytes(kind, raw, len(payload), checksum)
        write_all(self._sink, header)
        write_all(self._sink, payload)
        self.blocks.append(Written(kind == container.STORED, raw, len(header) + len(payload)))


class Writer(BlockWriter):
    """Writes a stream of blocks."""

    def __init__(self, sink: BinaryIO, header: dict[str, Any]):
        super().__init__(sink)
        self._header = container.header_bytes(header)

    def finish(self, checksum: int | None = None) -> Totals:
        """checksum: XXH3-64 of all raw bytes; None where `write_block` was given all."""
        if not self.blocks:
            self._header = container.header_bytes({})  # next to nothing, and stored
        known = self.end()
        if not self.blocks:
            self._begin()
        entries = [(block.raw, block.coded) for block in self.blocks]
        index = index_bytes(Index(len(self._header), entries, known if checksum is None else checksum))
        write_all(self._sink, index)
        coded = sum(block.coded for block in self.blocks)
        return Totals(sum(block.raw for block in self.blocks), len(self._header) + coded + len(index))

    def _begin(self) -> None:
        if not self.blocks:
            write_all(self._sink, self._header)


def _stored(block: bytes) -> bytes:
    """The raw bytes of a stored block. Raises DamagedError."""
    file = io.BytesIO(block)
    header = container.read_block_header(file)
    data = file.read()
    if header is None or xxhash.xxh3_64_intdigest(data) != header.checksum:
        raise damaged()
    return data
