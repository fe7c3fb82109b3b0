"""The way back: .sqz to bytes. compressor.py is the way there."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import xxhash

from squeeze.codecs.stream import container
from squeeze.codecs.stream.coding import Coded, Progress, check_raw, decode_block, report
from squeeze.codecs.stream.container import BlockHeader
from squeeze.codecs.stream.header import from_header
from squeeze.codecs.stream.index import Index, read_following_index
from squeeze.codecs.stream.resources import DictionarySource, Resources, either
from squeeze.codecs.stream.salvage import salvage_stream
from squeeze.codecs.stream.settings import Settings
from squeeze.codecs.stream.totals import Totals
from squeeze.codecs.varint import copy_pieces, read_exactly
from squeeze.errors import DamagedError, FormatError
from squeeze.system.in_order import ordered_map


def decompress(
    data: bytes,
    *,
    threads: int | None = None,
    model: Path | None = None,
    dictionary: DictionarySource = None,
    prior: DictionarySource = None,
) -> bytes:
    """Restore what `compress` was given. Raises FormatError or its children, ModelError or DictionaryError, and never
    returns wrong bytes."""
    sink = io.BytesIO()
    decompress_stream(io.BytesIO(data), sink, threads=threads, model=model, dictionary=either(dictionary, prior))
    return sink.getvalue()


def decompress_stream(
    source: BinaryIO,
    sink: BinaryIO | None,
    *,
    threads: int | None = None,
    model: Path | None = None,
    dictionary: DictionarySource = None,
    prior: DictionarySource = None,
    progress: Progress = None,
    salvage: bool = False,
) -> Totals:
    """Restore every stream of a .sqz file or pipe into `sink`, or only check it where `sink` is None.

    `model` is where the language model lies that a file needs, if it is not found without, and `dictionary` (`prior`
    by its older name) the dictionary that it was compressed with, or its path. With `salvage` damage raises nothing:
    undamaged blocks are restored in their places, zeros stand for what is missing, and `Totals.damage` names it.
    """
    given = Resources(threads, model, either(dictionary, prior))
    if salvage:
        return salvage_stream(source, sink, given, progress)
    counted = cast(BinaryIO, _Counted(source))
    raw, first = 0, True
    while (header := container.read_header(counted)) is not None:
        settings = from_header(header, given)
        if header.short:
            raw += _decode_short(counted, sink, settings, progress)
        else:
            raw += _decode_stream(counted, sink, settings, header.size, progress)
        first = False
    if first:
        raise FormatError("not a .sqz file: it is empty")
    return Totals(raw, counted.tell())


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


def _decode_short(source: BinaryIO, sink: BinaryIO | None, settings: Settings, progress: Progress) -> int:
    """Decode one short stream after its header; returns its raw size."""
    block = container.read_short_block_header(source)
    payload = read_exactly(source, block.payload_length)
    if block.kind == container.STORED:
        data = np.frombuffer(payload, np.uint8)
        report(progress, data.size)
    else:
        data = decode_block(Coded(block.kind, payload), block.raw_length, settings, progress)
    check_raw(data, block.checksum, short=True)
    if sink is not None:
        sink.write(data.data)
    return block.raw_length


def _decode_stream(
    source: BinaryIO, sink: BinaryIO | None, settings: Settings, header_size: int, progress: Progress
) -> int:
    """Decode one stream after its header; returns its raw size."""
    index, whole = Index(header_size), xxhash.xxh3_64()

    def decode(part: bytes | tuple[BlockHeader, bytes]) -> bytes | memoryview:
        if isinstance(part, bytes):
            return part
        block, payload = part
        data = decode_block(Coded(block.kind, payload), block.raw_length, settings, progress)
        check_raw(data, block.checksum)
        return data.data

    for data in ordered_map(decode, _read_parts(source, index, progress), settings.allotment.blocks):
        whole.update(data)
        if sink is not None:
            sink.write(data)
    index.checksum = whole.intdigest()
    read_following_index(source, index)
    return sum(raw for raw, _ in index.entries)


def _read_parts(source: BinaryIO, index: Index, progress: Progress) -> Iterator[bytes | tuple[BlockHeader, bytes]]:
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
