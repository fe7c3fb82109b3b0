"""Writing one stream: its header, blocks, and index."""

from typing import Any, BinaryIO

import numpy as np
import xxhash

from squeeze.codecs.stream import container
from squeeze.codecs.stream.coding import Coded
from squeeze.codecs.stream.index import Index, index_bytes
from squeeze.codecs.stream.totals import Totals
from squeeze.system.pipes import write_all

_STORED = 1 << 20  # raw bytes of a stored block at most: a reader checks all of one for a byte of it


class Writer:
    """Writes one stream. Stored bytes that follow each other share blocks, so that short runs cost one header."""

    def __init__(self, sink: BinaryIO, header: dict[str, Any]):
        self._sink, self._header = sink, header
        self._index, self._hash = Index(0), xxhash.xxh3_64()
        self._raw = self._coded = 0
        self._waiting = bytearray()  # to be stored, less than a block

    def write_block(self, data: np.ndarray, coded: Coded | None) -> None:
        self._hash.update(data.data)
        if coded:
            self.write_coded(coded, data.size, xxhash.xxh3_64_intdigest(data.data))
            return
        self._raw += data.size
        self._waiting += data.data
        self._store(len(self._waiting) // _STORED * _STORED)

    def write_coded(self, coded: Coded, length: int, checksum: int) -> None:
        """A block of `length` raw bytes that are not at hand. `finish` has to be told the stream's checksum then."""
        self._store(len(self._waiting))
        self._put_block(coded.kind, length, checksum, coded.payload)
        self._raw += length

    def finish(self, checksum: int | None = None) -> Totals:
        """checksum: XXH3-64 of all raw bytes; None where all were given."""
        self._begin({})
        self._store(len(self._waiting))
        self._index.checksum = self._hash.intdigest() if checksum is None else checksum
        self._put(index_bytes(self._index))
        return Totals(self._raw, self._coded)

    def _begin(self, header: dict[str, Any]) -> None:
        """Write the header, if it is not written yet."""
        if self._coded == 0:
            self._put(container.header_bytes(header))
            self._index.header_size = self._coded

    def _store(self, length: int) -> None:
        """Write so many of the waiting bytes."""
        for begin in range(0, length, _STORED):
            block = bytes(self._waiting[begin : min(begin + _STORED, length)])
            self._put_block(container.STORED, len(block), xxhash.xxh3_64_intdigest(block), block)
        del self._waiting[:length]

    def _put_block(self, kind: int, raw: int, checksum: int, payload: bytes) -> None:
        self._begin(self._header)
        header = container.block_header_bytes(kind, raw, len(payload), checksum)
        self._put(header)
        self._put(payload)
        self._index.entries.append((raw, len(header) + len(payload)))

    def _put(self, data: bytes) -> None:
        write_all(self._sink, data)
        self._coded += len(data)
