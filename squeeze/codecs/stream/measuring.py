"""Measuring the cost of every byte or token of a .sqz file: its blocks are decoded by code that notes it
(bitmodels/meter.py)."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

import numpy as np

from squeeze.codecs.content import Content
from squeeze.codecs.stream import container, media
from squeeze.codecs.stream.container import Coded, Header
from squeeze.codecs.stream.decoding import (
    Progress,
    check_raw,
    decode_block,
    has_runs,
    parts_of,
    report,
    rest_of,
)
from squeeze.codecs.stream.estimates import check_block_memory
from squeeze.codecs.stream.index import Block, Stream, read_index
from squeeze.codecs.stream.resources import Resources
from squeeze.codecs.stream.settings import Settings, from_header
from squeeze.numerics.bitmodels.meter import Recorder
from squeeze.system.binary import read_exactly
from squeeze.system.parallel import ordered_map

__all__ = ["MeasuredBlock", "measure", "restored"]


@dataclass(frozen=True)
class MeasuredBlock:
    """A block, or a part of one that is split or has runs, with its contents and costs."""

    block: Block
    level: int | None  # level that coded it; None if nothing is coded
    content: Content
    data: np.ndarray  # uint8
    places: np.ndarray  # int64 [n]: offset of each byte in the raw content
    recorder: Recorder  # without a meter if the block is stored


def measure(
    source: BinaryIO, resources: Resources, known: bytes | None = None, progress: Progress = None
) -> Iterator[MeasuredBlock]:
    """Yield every block of a seekable .sqz file in order, with its costs.

    Args:
        source: the file.
        resources: dictionary, language model, limits.
        known: the raw content, if it is known; a language model is faster then.
        progress: is called with the number of raw bytes done since its last call.

    Raises:
        FormatError: if the file is damaged; other errors as `decompress`.
    """
    raw = None if known is None else np.frombuffer(known, np.uint8)
    for stream in read_index(source, resources.limits):
        settings = from_header(Header(stream.header, 0, stream.short), resources)
        resources.limits.need_output(sum(block.raw_length for block in stream.blocks))

        def decode(
            part: tuple[Block, bytes], settings: Settings = settings, stream: Stream = stream
        ) -> list[MeasuredBlock]:
            return _decode(*part, settings, stream.short, raw, progress)

        blocks = ((block, _payload(source, block)) for block in stream.blocks)
        for measured in ordered_map(decode, blocks, settings.allotment.blocks):
            yield from measured


def restored(blocks: Sequence[MeasuredBlock]) -> bytes:
    """Return the raw content of the file from all its measured blocks."""
    data = np.empty(sum(block.data.size for block in blocks), np.uint8)
    for block in blocks:
        data[block.places] = block.data
    return data.tobytes()


def _payload(source: BinaryIO, block: Block) -> bytes:
    source.seek(block.coded_offset + block.coded_length - block.payload_length)
    return read_exactly(source, block.payload_length)


def _decode(
    block: Block, payload: bytes, settings: Settings, short: bool, raw: np.ndarray | None, progress: Progress
) -> list[MeasuredBlock]:
    """Decode a block, and return it, or its parts if it is split or has runs."""
    if block.kind != container.STORED:
        check_block_memory(settings, block.kind, block.raw_length, block.payload_length)
    places = np.arange(block.raw_offset, block.raw_offset + block.raw_length)
    measured = list(_measured(Coded(block.kind, payload), block, places, settings, raw, progress))
    check_raw(_joined(measured, places), block.checksum, short)
    return measured


def _measured(
    coded: Coded, block: Block, places: np.ndarray, settings: Settings, raw: np.ndarray | None, progress: Progress
) -> Iterator[MeasuredBlock]:
    """Yield the parts of a block that are decoded alone, and its runs; `places` are the bytes that it covers."""
    level = settings.level.number if settings.level else None
    if has_runs(coded, settings):
        found, inner = rest_of(coded, places.size)
        own = _part(block, inner, places.size - found.removed)
        rest = list(_measured(inner, own, places[~found.within], settings, raw, progress))
        yield from rest
        data = found.expand(_joined(rest, places[~found.within]))
        report(progress, found.removed)
        own = replace(
            block,
            kind=container.BYTEWISE,  # by no language model, which the rest may need
            raw_length=found.removed,
            payload_length=block.payload_length - own.payload_length,
            coded_length=block.coded_length - own.payload_length,
        )
        recorder = Recorder()
        recorder.start(found.removed, [["run"]]).bits[:] = 8 * own.payload_length / found.removed
        yield MeasuredBlock(own, level, Content("runs"), data[found.within], places[found.within], recorder)
    elif coded.kind == container.SPLIT:
        for part in parts_of(coded, places.size):
            own = _part(block, part.coded, part.size)
            yield from _measured(part.coded, own, places[part.places], settings, raw, progress)
    else:
        recorder, known = Recorder(), None if raw is None else raw[places]
        content = _content(coded, settings)
        data = decode_block(coded, places.size, settings, progress, known, recorder)
        yield MeasuredBlock(block, level, content, data, places, recorder)


def _joined(measured: Sequence[MeasuredBlock], places: np.ndarray) -> np.ndarray:
    """Return the bytes at `places` in order, from parts that cover them."""
    data = np.empty(places.size, np.uint8)
    for part in measured:
        data[np.searchsorted(places, part.places)] = part.data
    return data


def _part(block: Block, coded: Coded, size: int) -> Block:
    """Describe a part of a block as a block without a header."""
    length = len(coded.payload)
    return replace(block, kind=coded.kind, raw_length=size, payload_length=length, coded_length=length)


def _content(coded: Coded, settings: Settings) -> Content:
    if coded.kind in (container.STORED, container.OPENED):
        return Content("packed" if coded.kind == container.STORED else "opened")
    if medium := media.of_block(coded.kind):
        return Content(medium.kind)
    if settings.names_content and settings.dictionary:
        return settings.dictionary.content
    return container.read_content(io.BytesIO(coded.payload))[0]
