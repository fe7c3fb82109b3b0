"""Measuring the cost of every byte or token of a .sqz file: its blocks are decoded by code that notes it
(bitmodels/meter.py)."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

import numpy as np

from squeeze.codecs.content import Content
from squeeze.codecs.parse import outline, tree
from squeeze.codecs.parse.outline import Segment
from squeeze.codecs.stream import container, media, opened, repeats
from squeeze.codecs.stream.container import Coded, Header
from squeeze.codecs.stream.decoding import (
    Progress,
    check_raw,
    decode_block,
    has_runs,
    opened_parts,
    parts_of,
    report,
    rest_of,
    scaled,
)
from squeeze.codecs.stream.decompressor import decompress_stream
from squeeze.codecs.stream.estimates import check_block_memory
from squeeze.codecs.stream.index import Block, Stream, read_index
from squeeze.codecs.stream.resources import Resources
from squeeze.codecs.stream.settings import Settings, from_header
from squeeze.numerics.bitmodels.meter import Recorder
from squeeze.system.binary import read_exactly
from squeeze.system.parallel import ordered_map

__all__ = ["MeasuredBlock", "OpenedWrappers", "measure", "restored"]

_CLOSING = Content("closing of wrappers")


@dataclass(frozen=True)
class OpenedWrappers:
    """The wrappers of a block that were opened.

    Attributes:
        counts: The number of each kind.
        segments: All that is shown of the block, in order.
        growth: The bytes that are shown beyond the raw bytes of the block.
    """

    counts: dict[str, int]
    segments: list[Segment]
    growth: int


@dataclass(frozen=True)
class MeasuredBlock:
    """A block, or a part of one that is split, has runs or has opened wrappers, with its contents and costs.

    Attributes:
        block: Where it is. Its raw offset is that of what is shown.
        level: The level that coded it; None if nothing is coded.
        content: Its kind.
        data: Its bytes, uint8.
        places: The offset of each byte in what is shown, int64 [n]: the raw content, with wrappers opened.
        recorder: Its costs; without a meter if the block is stored.
        wrappers: Those that the plan of a block opens, which is a part without bytes.
    """

    block: Block
    level: int | None
    content: Content
    data: np.ndarray
    places: np.ndarray
    recorder: Recorder
    wrappers: OpenedWrappers | None = None

    def shifted(self, offset: int) -> "MeasuredBlock":
        """Return the block with what is shown `offset` bytes later."""
        found = self.wrappers and replace(
            self.wrappers,
            segments=[Segment(start + offset, end + offset, *rest) for start, end, *rest in self.wrappers.segments],
        )
        block = replace(self.block, raw_offset=offset)
        return replace(self, block=block, places=self.places + offset, wrappers=found)


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
    streams, shown = read_index(source, resources.limits), 0
    if known is None and any(block.kind == container.REPEATS for stream in streams for block in stream.blocks):
        known = _decompressed(source, resources)
    raw = None if known is None else np.frombuffer(known, np.uint8)
    for stream in streams:
        settings = from_header(Header(stream.header, 0, stream.short), resources)
        resources.limits.need_output(sum(block.raw_length for block in stream.blocks))

        def decode(
            part: tuple[Block, bytes], settings: Settings = settings, stream: Stream = stream
        ) -> list[MeasuredBlock]:
            return _decode(*part, settings, stream.short, raw, progress)

        blocks = ((block, _payload(source, block)) for block in stream.blocks)
        for measured in ordered_map(decode, blocks, settings.allotment.blocks):
            yield from (block.shifted(shown) for block in measured)
            shown += sum(block.data.size for block in measured)


def _decompressed(source: BinaryIO, resources: Resources) -> bytes:
    """Return the raw content of a seekable .sqz file."""
    sink = io.BytesIO()
    source.seek(0)
    decompress_stream(source, sink, **vars(resources))
    return sink.getvalue()


def restored(blocks: Sequence[MeasuredBlock]) -> bytes:
    """Return what is shown of the file from all its measured blocks: its raw content, with wrappers opened."""
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
    """Decode a block, and return it, or its parts, with places that begin at 0."""
    if block.kind != container.STORED:
        check_block_memory(settings, block.kind, block.raw_length, block.payload_length)
    known = None if raw is None else raw[block.raw_offset : block.raw_offset + block.raw_length]
    coded = Coded(block.kind, payload)
    if block.kind == container.OPENED:
        return _opened(coded, block, settings, short, known, progress)
    places = np.arange(block.raw_length)
    measured = list(_measured(coded, block, places, settings, known, progress))
    check_raw(_joined(measured, places), block.checksum, short)
    return measured


def _opened(
    coded: Coded, block: Block, settings: Settings, short: bool, raw: np.ndarray | None, progress: Progress
) -> list[MeasuredBlock]:
    """Decode a block with opened wrappers, and return its plan and the parts of its groups."""
    parts = opened_parts(coded, block.raw_length, settings)
    plan = opened.read_plan(decode_block(*parts.plan, settings), parts)
    known = _known(raw, sum(parts.sizes)) if settings.language else None  # others are hardly faster with it
    tick = scaled(progress, block.raw_length, parts.size)
    report(tick, parts.plan[1])
    measured = list[MeasuredBlock]()
    for number, group in enumerate(parts.groups):
        places, done = plan.places(number), 0
        for part, size in group:
            check_block_memory(settings, part.kind, size, len(part.payload))
            own = _part(block, part, size)
            measured += _measured(part, own, places[done : done + size], settings, known, tick)
            done += size
    data = _joined(measured, np.arange(sum(parts.sizes)))
    check_raw(opened.close(plan, data, block.raw_length), block.checksum, short)
    root = tree.read(plan.tree, data)
    segments = outline.in_place(root)
    shown, ends = np.empty(data.size, np.int64), np.cumsum([0, *(end - start for start, end, _ in segments)]).tolist()
    for (start, end, _), begin in zip(segments, ends, strict=False):
        shown[start:end] = np.arange(begin, begin + end - start)
    length = len(parts.plan[0].payload)
    own = replace(
        block,
        kind=parts.plan[0].kind,
        payload_length=length,
        coded_length=block.coded_length - sum(len(part.payload) for part in parts.blocks()),
    )
    placed = [Segment(begin, end, one.name) for one, begin, end in zip(segments, ends, ends[1:], strict=False)]
    empty = np.empty(0, np.int64)
    closing = MeasuredBlock(
        own,
        settings.level.number if settings.level else None,
        _CLOSING,
        data[:0],
        empty,
        Recorder(),
        OpenedWrappers(outline.counts(root), placed, data.size - block.raw_length),
    )
    return [closing, *(replace(one, places=shown[one.places]) for one in measured)]


def _known(raw: np.ndarray | None, size: int) -> np.ndarray | None:
    """Return the opened bytes of a raw block, or None if they are not known, or not `size` bytes."""
    root = None if raw is None else opened.find(raw)
    found = np.concatenate([node.own for node in root.nodes()]) if root else None
    return found if found is not None and found.size == size else None


def _measured(
    coded: Coded, block: Block, places: np.ndarray, settings: Settings, raw: np.ndarray | None, progress: Progress
) -> Iterator[MeasuredBlock]:
    """Yield the parts of a block that are decoded alone, and its runs; `places` are the bytes that it covers, in order
    or of a group."""
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
    elif coded.kind == container.REPEATS:
        yield from _with_copies(coded, block, places, settings, raw, progress)
    elif coded.kind == container.SPLIT:
        for part in parts_of(coded, places.size):
            own = _part(block, part.coded, part.size)
            yield from _measured(part.coded, own, places[part.places], settings, raw, progress)
    else:
        recorder, known = Recorder(), None if raw is None else raw[places]
        content = _content(coded, settings)
        data = decode_block(coded, places.size, settings, progress, known, recorder)
        yield MeasuredBlock(block, level, content, data, places, recorder)


def _with_copies(
    coded: Coded, block: Block, places: np.ndarray, settings: Settings, raw: np.ndarray | None, progress: Progress
) -> Iterator[MeasuredBlock]:
    """Yield the parts of a block with repeats as `_measured` does: what it codes itself, and its copies."""
    assert raw is not None
    found = repeats.read(coded.payload, places.size)
    within, removed = found.copies.within, found.copies.removed
    own, level = _part(block, found.rest, found.rest_size), settings.level.number if settings.level else None
    if found.rest.kind == container.OPENED:  # it is shown as it is in the file
        yield _alike(own, level, Content("opened"), raw[places[~within]], places[~within])
    elif found.rest_size:
        yield from _measured(found.rest, own, places[~within], settings, raw, progress)
    report(progress, removed)
    listed = block.payload_length - len(found.rest.payload)
    own = replace(
        block, raw_length=removed, payload_length=listed, coded_length=block.coded_length - len(found.rest.payload)
    )
    yield _alike(own, level, Content("repeats"), raw[places[within]], places[within])


def _alike(block: Block, level: int | None, content: Content, data: np.ndarray, places: np.ndarray) -> MeasuredBlock:
    """Return a block each of whose bytes costs the same."""
    recorder = Recorder()
    recorder.start(data.size, [[content.kind]]).bits[:] = 8 * block.payload_length / max(data.size, 1)
    return MeasuredBlock(block, level, content, data, places, recorder)


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
    if coded.kind == container.STORED:
        return Content("packed")
    if medium := media.of_block(coded.kind):
        return Content(medium.name_of(coded.payload[:1]))
    if settings.names_content and settings.dictionary:
        return settings.dictionary.content
    return container.read_content(io.BytesIO(coded.payload))[0]
