"""Writing one stream: its header, blocks, and index."""

from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np
import xxhash

from squeeze.codecs.stream import container
from squeeze.codecs.stream.coding import Coded
from squeeze.codecs.stream.index import Index, index_bytes
from squeeze.codecs.stream.totals import Totals
from squeeze.codecs.varint import copy_pieces
from squeeze.errors import VerifyError
from squeeze.system.pipes import write_all


class Writer:
    """Writes one stream; runs of stored blocks become one block, so that they cost one header."""

    def __init__(self, source: BinaryIO, sink: BinaryIO, header: dict[str, Any]):
        self._source = source if source.seekable() else None
        self._sink = sink
        self._header = header
        self._base = source.tell() if self._source else 0
        self._index = Index(0)
        self._hash = xxhash.xxh3_64()
        self._raw = self._coded = 0
        self._stored_length = 0
        self._stored_hash = xxhash.xxh3_64()

    def write_block(self, data: np.ndarray, coded: Coded | None) -> None:
        self._hash.update(data.data)
        if coded is None:
            self._stored_hash.update(data.data)
            self._stored_length += data.size
            if self._source is None:
                self._put_stored(data.size, [data.tobytes()])
            self._raw += data.size
        else:
            self.write_coded(coded, data.size, xxhash.xxh3_64_intdigest(data.data))

    def write_coded(self, coded: Coded, length: int, checksum: int) -> None:
        """A block of `length` raw bytes that are not at hand. `finish` has to be told the stream's checksum then."""
        self._flush_stored()
        self._put_block(coded.kind, length, len(coded.payload), checksum, [coded.payload])
        self._raw += length

    def finish(self, checksum: int | None = None) -> Totals:
        """checksum: XXH3-64 of all raw bytes; None where all were given."""
        self._begin({})
        self._flush_stored()
        self._index.checksum = self._hash.intdigest() if checksum is None else checksum
        self._put(index_bytes(self._index))
        return Totals(self._raw, self._coded)

    def _begin(self, header: dict[str, Any]) -> None:
        """Write the header, if it is not written yet."""
        if self._coded == 0:
            self._put(container.header_bytes(header))
            self._index.header_size = self._coded

    def _flush_stored(self) -> None:
        """Write the run of stored bytes so far, read again from where it stands in the source."""
        length = self._stored_length
        if length == 0 or self._source is None:
            return
        position = self._source.tell()
        self._source.seek(self._base + self._raw - length)
        expected, reread = self._stored_hash.intdigest(), xxhash.xxh3_64()
        self._put_stored(length, _hashed(copy_pieces(self._source, length), reread))
        if reread.intdigest() != expected:
            raise VerifyError("the input changed while it was read: compress it again when nothing writes to it")
        self._source.seek(position)

    def _put_stored(self, length: int, pieces: Iterable[bytes]) -> None:
        self._put_block(container.STORED, length, length, self._stored_hash.intdigest(), pieces)
        self._stored_length = 0
        self._stored_hash.reset()

    def _put_block(self, kind: int, raw: int, coded: int, checksum: int, pieces: Iterable[bytes]) -> None:
        self._begin(self._header)
        header = container.block_header_bytes(kind, raw, coded, checksum)
        self._put(header)
        for piece in pieces:
            self._put(piece)
        self._index.entries.append((raw, len(header) + coded))

    def _put(self, data: bytes) -> None:
        write_all(self._sink, data)
        self._coded += len(data)


def _hashed(pieces: Iterable[bytes], state: xxhash.xxh3_64) -> Iterator[bytes]:
    for piece in pieces:
        state.update(piece)
        yield piece
