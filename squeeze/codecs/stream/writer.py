"""Writing a stream: its header, blocks and index."""

import io
from collections.abc import Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import xxhash

from squeeze.codecs.stream import container
from squeeze.codecs.stream.container import Coded
from squeeze.codecs.stream.contents import Contents, merged
from squeeze.codecs.stream.footer import Index, index_bytes
from squeeze.codecs.stream.opened import OpenedBlock
from squeeze.codecs.stream.resources import Totals
from squeeze.codecs.stream.summing import contents_of
from squeeze.system.binary import write_all
from squeeze.system.part_file import PartFile, damaged

_STORED = 1 << 20  # most raw bytes of a stored block, since a reader checks all of one


class WrittenBlock(NamedTuple):
    """A block that was written; `coded` are its bytes with the header."""

    stored: bool
    raw: int
    coded: int


class BlockWriter:
    """A writer of blocks, which joins adjacent stored bytes into shared blocks."""

    def __init__(self, sink: BinaryIO):
        self._sink, self._hash = sink, xxhash.xxh3_64()
        self.blocks: list[WrittenBlock] = []
        self.opened: list[Contents] = []  # what was opened in blocks
        self._waiting = bytearray()  # bytes to store, less than a block

    def write_block(self, data: np.ndarray, coded: Coded | None) -> None:
        self._hash.update(data.data)
        if isinstance(coded, OpenedBlock):
            self.opened.append(contents_of(coded, data.size, coded.wrappers))
        if coded:
            self._store(len(self._waiting))
            self._put_block(coded.kind, data.size, xxhash.xxh3_64_intdigest(data.data), coded.payload)
        else:
            self._wait(data.data)

    def write_part(self, blocks: Sequence[WrittenBlock], part: PartFile) -> None:
        """Write the blocks of a part.

        Stored blocks at its ends are read, since they are joined with stored bytes before and after them.

        Raises:
            DamagedError: if the part is damaged.
        """
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
        """Write the stored bytes that wait, and return the XXH3-64 of all bytes passed to `write_block`."""
        self._store(len(self._waiting))
        return self._hash.intdigest()

    def _begin(self) -> None:
        """Prepare for the first block; a subclass writes the header."""

    def _wait(self, data: Any) -> None:
        self._waiting += data
        self._store(len(self._waiting) // _STORED * _STORED)

    def _store(self, length: int) -> None:
        """Write the first `length` bytes that wait."""
        for begin in range(0, length, _STORED):
            block = bytes(self._waiting[begin : min(begin + _STORED, length)])
            self._put_block(container.STORED, len(block), xxhash.xxh3_64_intdigest(block), block)
        del self._waiting[:length]

    def _put_block(self, kind: int, raw: int, checksum: int, payload: bytes) -> None:
        self._begin()
        header = container.block_header_bytes(kind, raw, len(payload), checksum)
        write_all(self._sink, header)
        write_all(self._sink, payload)
        self.blocks.append(WrittenBlock(kind == container.STORED, raw, len(header) + len(payload)))


class Writer(BlockWriter):
    """A writer of a whole stream."""

    def __init__(self, sink: BinaryIO, header: dict[str, Any]):
        super().__init__(sink)
        self._header = container.header_bytes(header)

    def finish(self, checksum: int | None = None) -> Totals:
        """Write the rest and the index. `checksum` is the XXH3-64 of all raw bytes, None if `write_block` got them
        all."""
        if not self.blocks:
            self._header = container.header_bytes({})
        known = self.end()
        if not self.blocks:
            self._begin()
        entries = [(block.raw, block.coded) for block in self.blocks]
        index = index_bytes(Index(len(self._header), entries, known if checksum is None else checksum))
        write_all(self._sink, index)
        coded = sum(block.coded for block in self.blocks)
        raw = sum(block.raw for block in self.blocks)
        return Totals(raw, len(self._header) + coded + len(index), opened=merged(self.opened))

    def _begin(self) -> None:
        if not self.blocks:
            write_all(self._sink, self._header)


def _stored(block: bytes) -> bytes:
    """Return the raw bytes of a stored block.

    Raises:
        DamagedError: if its checksum differs.
    """
    file = io.BytesIO(block)
    header = container.read_block_header(file)
    data = file.read()
    if header is None or xxhash.xxh3_64_intdigest(data) != header.checksum:
        raise damaged()
    return data
