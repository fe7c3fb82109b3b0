"""Restoring what is left of a damaged .sqz file: every block whose checksum is right, in its place.

Where the indexes at the end are whole, they say where each block lies, and
damage anywhere else costs only the block it is in. Where they are not, the
blocks are walked from the front, up to the first whose header is damaged.
"""

import io
from collections.abc import Iterable
from typing import BinaryIO

import xxhash

from squeeze.codecs.stream import container
from squeeze.codecs.stream.coding import Coded, Progress, decode_block
from squeeze.codecs.stream.header import from_header
from squeeze.codecs.stream.index import Index, index_bytes, read_index_before
from squeeze.codecs.stream.resources import Resources
from squeeze.codecs.stream.settings import Settings
from squeeze.codecs.stream.totals import Totals
from squeeze.codecs.varint import copy_pieces, read_exactly
from squeeze.errors import DamagedError, DictionaryError, FormatError, ModelError, SqueezeError

_Place = tuple[int, int]  # where a block's header lies, and the raw length of the block


def salvage_stream(
    source: BinaryIO,
    sink: BinaryIO | None,
    given: Resources,
    progress: Progress = None,
) -> Totals:
    """Write what can be restored, with zeros for what cannot; the totals name every missing range.

    Raises FormatError only where `source` is not a .sqz file at all.
    """
    file = source if source.seekable() else io.BytesIO(source.read())
    end = file.seek(0, io.SEEK_END)
    if end == 0:
        raise FormatError("not a .sqz file: it is empty")
    streams, reason = _by_index(file, end), None
    if streams is None:
        streams, reason = _by_walk(file, end)
    raw, damage = 0, []
    for start, places in streams:
        settings = _settings(file, start, given)
        for offset, length in places:
            pieces = _restore(file, offset, length, settings, progress)
            if pieces is None:
                damage.append(f"bytes {raw} to {raw + length} are lost: their block is damaged")
                pieces = _zeros(length)
            raw += length
            if sink is not None:
                sink.writelines(pieces)
    if reason:
        damage.append(f"what follows byte {raw} is lost: {reason}")
    return Totals(raw, end, tuple(damage))


def _by_index(file: BinaryIO, end: int) -> list[tuple[int, list[_Place]]] | None:
    """(start, blocks) of every stream, from the indexes alone; None where one of them is damaged."""
    streams = []
    while end:
        try:
            index, start = read_index_before(file, end)
        except SqueezeError:
            return None
        places, offset = [], start + index.header_size
        for raw, coded in index.entries:
            places.append((offset, raw))
            offset += coded
        streams.append((start, places))
        end = start
    return streams[::-1]


def _by_walk(file: BinaryIO, end: int) -> tuple[list[tuple[int, list[_Place]]], str | None]:
    """(start, blocks) of every stream, from the front, and why the walk ended early, if it did."""
    streams: list[tuple[int, list[_Place]]] = []
    written, short = Index(0), False
    file.seek(0)
    try:
        while (start := file.tell()) < end:
            header = container.read_header(file)
            if header is None:
                break
            streams.append((start, []))
            if header.short:
                short = True
                only_block = container.read_short_block_header(file)
                streams[-1][1].append((file.tell() - only_block.size, only_block.raw_length))
                file.seek(only_block.payload_length, io.SEEK_CUR)
                if file.tell() > end:
                    return streams, "the file was cut off"
                continue
            written = Index(header.size)
            while (block := container.read_block_header(file)) is not None:
                offset = file.tell() - block.size
                if file.tell() + block.payload_length > end:
                    return streams, "the file was cut off"
                streams[-1][1].append((offset, block.raw_length))
                written.entries.append((block.raw_length, block.size + block.payload_length))
                file.seek(block.payload_length, io.SEEK_CUR)
            read_exactly(file, len(index_bytes(written)) - 1)
    except DamagedError as error:
        return streams, str(error)
    except FormatError as error:
        if not streams:
            raise
        return streams, str(error)
    return streams, None if short else "the index is damaged"


def _settings(file: BinaryIO, start: int, given: Resources) -> Settings:
    """What the header of the stream at `start` names; no level where it is damaged."""
    try:
        file.seek(start)
        header = container.read_header(file)
        return from_header(header, given) if header else Settings()
    except FormatError:
        return Settings()


def _restore(
    file: BinaryIO, offset: int, length: int, settings: Settings, progress: Progress
) -> Iterable[bytes] | None:
    """The raw bytes of the block at `offset` in pieces, or None where it is damaged."""
    try:
        file.seek(offset)
        header = container.read_short_block_header(file) if settings.short else container.read_block_header(file)
        if header is None or header.raw_length != length:
            return None
        if header.kind == container.STORED:
            state = xxhash.xxh3_64()
            for piece in copy_pieces(file, length):
                state.update(piece)
            file.seek(offset + header.size)
            right = container.is_checksum(state.intdigest(), header.checksum, settings.short)
            return copy_pieces(file, length) if right else None
        coded = Coded(header.kind, read_exactly(file, header.payload_length))
        data = decode_block(coded, length, settings, progress)
    except (ModelError, DictionaryError):
        raise
    except SqueezeError:
        return None
    right = container.is_checksum(xxhash.xxh3_64_intdigest(data.data), header.checksum, settings.short)
    return [data.tobytes()] if right else None


def _zeros(length: int) -> Iterable[bytes]:
    for start in range(0, length, 1 << 20):
        yield bytes(min(1 << 20, length - start))
