"""What every byte or token of a .sqz file cost: its blocks are decoded by steps that measure (bitmodels/meter.py)."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

import numpy as np

from squeeze.codecs.bitmodels.meter import Recorder
from squeeze.codecs.stream import container
from squeeze.codecs.stream.coding import Coded, Progress, check_raw, decode_block, need_memory, parts_of
from squeeze.codecs.stream.container import Content, Header
from squeeze.codecs.stream.header import from_header
from squeeze.codecs.stream.index import Block, Stream, read_index
from squeeze.codecs.stream.resources import Resources
from squeeze.codecs.stream.settings import Settings
from squeeze.codecs.varint import read_exactly
from squeeze.system.in_order import ordered_map

__all__ = ["MeasuredBlock", "measure", "restored"]


@dataclass(frozen=True)
class MeasuredBlock:
    """A block, or one of the two parts of a split block: what it holds, and what was measured of it."""

    block: Block
    level: int | None  # by which it was written; None where nothing is coded
    content: Content
    data: np.ndarray  # uint8
    places: np.ndarray  # int64: where each of these bytes lies in the file
    recorder: Recorder  # without a meter where the block is stored


def measure(
    source: BinaryIO, resources: Resources, known: bytes | None = None, progress: Progress = None
) -> Iterator[MeasuredBlock]:
    """Every block of a seekable .sqz file, in order.

    known: what the file holds, where that is known already: a language model is faster then. Raises what
    `decompress` does.
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
    """What the file holds, from all that was measured."""
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
    """A block, or the parts of a split one."""
    coded = Coded(block.kind, payload)
    if block.kind != container.STORED:
        need_memory(settings, block.kind, block.raw_length, block.payload_length)
    data, measured = np.empty(block.raw_length, np.uint8), []
    for part, own, within in _parts(block, coded):
        recorder, content, level = Recorder(), Content("packed"), settings.level
        places = within + block.raw_offset
        if part.kind != container.STORED:
            content = _content(part, settings)
        known = None if raw is None else raw[places]
        data[within] = decode_block(part, places.size, settings, progress, known, recorder)
        measured.append(MeasuredBlock(own, level.number if level else None, content, data[within], places, recorder))
    check_raw(data, block.checksum, short)
    return measured


def _parts(block: Block, coded: Coded) -> Iterator[tuple[Coded, Block, np.ndarray]]:
    """What is decoded alone: how it is coded, as a block, and the places of its bytes within the block."""
    if coded.kind != container.SPLIT:
        yield coded, block, np.arange(block.raw_length)
        return
    for part in parts_of(coded, block.raw_length):
        within = np.flatnonzero(part.places)
        size = len(part.coded.payload)
        own = replace(block, kind=part.coded.kind, raw_length=within.size, payload_length=size, coded_length=size)
        yield part.coded, own, within


def _content(coded: Coded, settings: Settings) -> Content:
    if settings.names_content and settings.dictionary:
        return settings.dictionary.content
    return container.read_content(io.BytesIO(coded.payload))[0]
