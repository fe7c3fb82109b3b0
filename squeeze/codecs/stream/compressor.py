"""The main path: bytes to .sqz and back, read this first.

`compress_stream` cuts its input into blocks of one kind of content, codes them
(with threads, always to the same bytes), decodes each again to be sure, and
writes what is smallest. `decompress_stream` undoes it. How a block is coded is
coding.py's; how it lies in the file is container.py's.
"""

import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import numpy as np
import xxhash

from squeeze.codecs.stream import blocks, container, levels
from squeeze.codecs.stream.coding import (
    Coded,
    Coding,
    PriorSource,
    Progress,
    as_prior,
    decode_block,
    encode_block,
    report,
)
from squeeze.codecs.stream.container import Content
from squeeze.codecs.stream.index import Index, index_bytes, read_following_index
from squeeze.codecs.stream.salvage import salvage_stream
from squeeze.codecs.stream.totals import Totals
from squeeze.codecs.varint import copy_pieces, read_exactly
from squeeze.errors import DamagedError, FormatError, LevelError, VerifyError

T = TypeVar("T")
R = TypeVar("R")


def compress(
    data: bytes, level: int | None = None, *, threads: int | None = None, verify: bool = True, **options: Any
) -> bytes:
    """Compress bytes to a .sqz file in memory; `options` are those of `compress_stream`.

    Raises LevelError for a level that does not exist, ModelError for a language model that is not there, and
    VerifyError if the result does not decode to `data` (a fault of the machine).

    >>> decompress(compress(b"abc" * 100)) == b"abc" * 100
    True
    """
    sink = io.BytesIO()
    compress_stream(io.BytesIO(data), sink, level=level, threads=threads, verify=verify, **options)
    return sink.getvalue()


def decompress(
    data: bytes, *, threads: int | None = None, model: Path | None = None, prior: "PriorSource" = None
) -> bytes:
    """Restore what `compress` was given. Raises FormatError or its children, ModelError or PriorError, and never
    returns wrong bytes."""
    sink = io.BytesIO()
    decompress_stream(io.BytesIO(data), sink, threads=threads, model=model, prior=prior)
    return sink.getvalue()


def compress_stream(
    source: BinaryIO,
    sink: BinaryIO,
    *,
    level: int | None = None,
    threads: int | None = None,
    verify: bool = True,
    block_size: int | None = None,
    model: Path | None = None,
    lanes: int | None = None,
    window: int | None = None,
    backend: str | None = None,
    prior: "PriorSource" = None,
    progress: Progress = None,
) -> Totals:
    """Compress a binary file or pipe of any length into `sink`.

    `threads` work at a time (None: one, and at levels 7 to 9 one a core); `block_size` is the most raw bytes of
    a block. At levels 7 to 9 `model` is the language model, a path (None: the bundled one), each text is cut
    into `lanes`, and a token is predicted from the `window` of tokens before it; `backend` is "exact" (None), or
    "llamacpp" for any GGUF model, in a file that opens on machines like this one only and is always verified.
    `prior` is a Prior that `train` made, or its file's path: it sets the level, and is needed again to decompress.
    `progress(n)` is told of n more raw bytes coded or verified.
    """
    known = as_prior(prior)
    if level is None:
        level = known.level if known else levels.default()[0]
    levels.check(level)
    size = levels.DEFAULT_BLOCK if block_size is None else block_size
    if not 1 <= size <= container.MAX_BLOCK:
        raise LevelError(f"a block holds from 1 byte to {container.MAX_BLOCK >> 20} MiB: choose a block size between")
    coding = Coding.chosen(level, threads, model, lanes, window, backend, known)
    writer = _Writer(source, sink, coding.header())
    first = _read_full(source, size)
    if known and len(first) <= container.MAX_SHORT and len(first) < size:
        return _write_short(first, sink, replace(coding, short=True), verify, progress)

    def encode(part: tuple[np.ndarray, Content]) -> tuple[np.ndarray, Coded | None]:
        return part[0], encode_block(*part, coding, verify, progress)

    for data, coded in _in_order(encode, _parts(first, source, size), coding.blocks_at_a_time):
        writer.write_block(data, coded)
    return writer.finish()


def _write_short(raw: bytes, sink: BinaryIO, coding: Coding, verify: bool, progress: Progress) -> Totals:
    """A short stream, which has no index."""
    assert coding.prior
    coded = encode_block(np.frombuffer(raw, np.uint8), coding.prior.content, coding, verify, progress)
    stream = container.short_stream_bytes(coding.prior.identity, raw, coded.payload if coded else None)
    sink.write(stream)
    return Totals(len(raw), len(stream))


def decompress_stream(
    source: BinaryIO,
    sink: BinaryIO | None,
    *,
    threads: int | None = None,
    model: Path | None = None,
    prior: "PriorSource" = None,
    progress: Progress = None,
    salvage: bool = False,
) -> Totals:
    """Restore every stream of a .sqz file or pipe into `sink`, or only check it where `sink` is None.

    `model` is where the language model lies that a file needs, if it is not found without, and `prior` the prior
    that it was compressed with, or its path. With `salvage`
    damage raises nothing: undamaged blocks are restored in their places, zeros stand for what is missing, and
    `Totals.damage` names it.
    """
    if salvage:
        return salvage_stream(source, sink, threads, model, prior, progress)
    counted = cast(BinaryIO, _Counted(source))
    raw, first = 0, True
    while (found := container.read_header(counted)) is not None:
        coding = Coding.named(found.fields, threads, model, prior, found.short)
        if found.short:
            raw += _decode_short(counted, sink, coding, progress)
        else:
            raw += _decode_stream(counted, sink, coding, found.size, progress)
        first = False
    if first:
        raise FormatError("not a .sqz file: it is empty")
    return Totals(raw, counted.tell())


def check_raw(data: np.ndarray, checksum: int, short: bool = False) -> None:
    if not container.is_checksum(xxhash.xxh3_64_intdigest(data.data), checksum, short):
        raise DamagedError("a block's checksum differs: the file is damaged (--salvage restores the other blocks)")


class _Writer:
    """Writes one stream; runs of stored blocks become one block, so that they cost one header."""

    def __init__(self, source: BinaryIO, sink: BinaryIO, header: dict):
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
        else:
            self._flush_stored()
            checksum = xxhash.xxh3_64_intdigest(data.data)
            self._put_block(coded.kind, data.size, len(coded.payload), checksum, [coded.payload])
        self._raw += data.size

    def finish(self) -> Totals:
        self._begin({})
        self._flush_stored()
        self._index.checksum = self._hash.intdigest()
        self._put(index_bytes(self._index))
        return Totals(self._raw, self._coded)

    def _begin(self, header: dict) -> None:
        """Write the header, if it is not written yet."""
        if self._coded == 0:
            self._put(container.header_bytes(header))
            self._index.header_size = self._coded

    def _flush_stored(self) -> None:
        """Write the run of stored bytes so far, read again from where it stands in the source."""
        length = self._stored_length
        if length == 0 or self._source is None:
            return
        here = self._source.tell()
        self._source.seek(self._base + self._raw - length)
        expected, again = self._stored_hash.intdigest(), xxhash.xxh3_64()
        self._put_stored(length, _hashed(copy_pieces(self._source, length), again))
        if again.intdigest() != expected:
            raise VerifyError("the input changed while it was read: compress it again when nothing writes to it")
        self._source.seek(here)

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
        self._sink.write(data)
        self._coded += len(data)


def _hashed(pieces: Iterable[bytes], state: xxhash.xxh3_64) -> Iterator[bytes]:
    for piece in pieces:
        state.update(piece)
        yield piece


def _parts(chunk: bytes, source: BinaryIO, size: int) -> Iterator[tuple[np.ndarray, Content]]:
    """A chunk and the rest of the source in parts of one kind of content, at most `size` bytes each."""
    while chunk:
        data = np.frombuffer(chunk, np.uint8)
        for start, end, content in blocks.regions(data):
            yield data[start:end], content
        chunk = _read_full(source, size)


def _read_full(source: BinaryIO, size: int) -> bytes:
    """`size` bytes, or fewer at the end of the source; pipes may give them in pieces."""
    pieces = []
    while size:
        piece = source.read(size)
        if not piece:
            break
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _in_order(function: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """`map` over a few items at a time: at most `threads` results are worked on or wait."""
    if threads <= 1:
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(threads)
    waiting: deque[Future[R]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) >= threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class _Counted:
    """A source that counts what was read."""

    def __init__(self, source: BinaryIO):
        self._source = source
        self._position = 0

    def read(self, size: int) -> bytes:
        data = self._source.read(size)
        self._position += len(data)
        return data

    def tell(self) -> int:
        return self._position


def _decode_short(source: BinaryIO, sink: BinaryIO | None, coding: Coding, progress: Progress) -> int:
    """Decode one short stream after its header; returns its raw size."""
    block = container.read_short_block_header(source)
    payload = read_exactly(source, block.payload_length)
    if block.kind == container.STORED:
        data = np.frombuffer(payload, np.uint8)
        report(progress, data.size)
    else:
        data = decode_block(Coded(block.kind, payload), block.raw_length, coding, progress)
    check_raw(data, block.checksum, short=True)
    if sink is not None:
        sink.write(data.data)
    return block.raw_length


def _decode_stream(
    source: BinaryIO, sink: BinaryIO | None, coding: Coding, header_size: int, progress: Progress
) -> int:
    """Decode one stream after its header; returns its raw size."""
    index, whole = Index(header_size), xxhash.xxh3_64()

    def decode(part):
        if isinstance(part, bytes):
            return part
        block, payload = part
        data = decode_block(Coded(block.kind, payload), block.raw_length, coding, progress)
        check_raw(data, block.checksum)
        return data.data

    for data in _in_order(decode, _read_parts(source, index, progress), coding.blocks_at_a_time):
        whole.update(data)
        if sink is not None:
            sink.write(data)
    index.checksum = whole.intdigest()
    read_following_index(source, index)
    return sum(raw for raw, _ in index.entries)


def _read_parts(source, index: Index, progress: Progress):
    """Payloads of coded blocks with their headers, and the bytes of stored blocks, checked, in pieces."""
    while (block := container.read_block_header(source)) is not None:
        index.entries.append((block.raw_length, block.size + block.payload_length))
        if block.kind != container.STORED:
            yield block, read_exactly(source, block.payload_length)
            continue
        state = xxhash.xxh3_64()
        for piece in copy_pieces(source, block.payload_length):
            state.update(piece)
            report(progress, len(piece))
            yield piece
        if state.intdigest() != block.checksum:
            raise DamagedError("a stored block's checksum differs: the file is damaged")
