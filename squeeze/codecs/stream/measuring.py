"""What every byte or token of a .sqz file cost: its blocks are decoded by steps that measure (bitmodels/meter.py)."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from squeeze.codecs.bitmodels.meter import Recorder
from squeeze.codecs.stream import container
from squeeze.codecs.stream.coding import Coded, Progress, check_raw, decode_block, need_memory, report
from squeeze.codecs.stream.container import Content, Header
from squeeze.codecs.stream.header import from_header
from squeeze.codecs.stream.index import Block, Stream, read_index
from squeeze.codecs.stream.resources import Resources
from squeeze.codecs.stream.settings import Settings
from squeeze.codecs.varint import read_exactly
from squeeze.system.in_order import ordered_map

__all__ = ["MeasuredBlock", "measure"]


@dataclass(frozen=True)
class MeasuredBlock:
    """A block, what it holds, and what was measured of it."""

    block: Block
    level: int | None  # by which it was written; None where nothing is coded
    content: Content
    data: np.ndarray  # uint8
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

        def decode(part: tuple[Block, bytes], settings: Settings = settings, stream: Stream = stream) -> MeasuredBlock:
            return _decode(*part, settings, stream.short, raw, progress)

        blocks = ((block, _payload(source, block)) for block in stream.blocks)
        yield from ordered_map(decode, blocks, settings.allotment.blocks)


def _payload(source: BinaryIO, block: Block) -> bytes:
    source.seek(block.coded_offset + block.coded_length - block.payload_length)
    return read_exactly(source, block.payload_length)


def _decode(
    block: Block, payload: bytes, settings: Settings, short: bool, raw: np.ndarray | None, progress: Progress
) -> MeasuredBlock:
    recorder, content, level = Recorder(), Content("packed"), settings.level
    if block.kind == container.STORED:
        data = np.frombuffer(payload, np.uint8)
        report(progress, data.size)
    else:
        need_memory(settings, block.kind, block.raw_length, block.payload_length)
        if settings.names_content and settings.dictionary:
            content = settings.dictionary.content
        else:
            content, _ = container.read_content(io.BytesIO(payload))
        guessed = None if raw is None else raw[block.raw_offset : block.raw_offset + block.raw_length]
        coded = Coded(block.kind, payload)
        data = decode_block(coded, block.raw_length, settings, progress, guessed, recorder)
    check_raw(data, block.checksum, short)
    return MeasuredBlock(block, level.number if level else None, content, data, recorder)
