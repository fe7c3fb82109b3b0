"""Restoring what is left of a damaged .sqz file: every block whose checksum is right, at its place.

If the indexes at the end are intact, they give the place of each block, and damage elsewhere costs only the blocks it
is in. Otherwise blocks are read from the start, up to the first damaged header. The order and completeness of blocks is
proved only by the checksum of a stream; if that cannot be compared, the result says so.
"""

import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import BinaryIO, NamedTuple

import xxhash

from squeeze.codecs.stream import container
from squeeze.codecs.stream.copies import Literals, restore
from squeeze.codecs.stream.decoding import Progress, check_raw, decode_block, decode_repeats, load_block
from squeeze.codecs.stream.estimates import check_block_memory
from squeeze.codecs.stream.footer import Index, index_bytes, read_checksum
from squeeze.codecs.stream.history import LoadedBlocks
from squeeze.codecs.stream.index import indexes_from_end
from squeeze.codecs.stream.memory import EntryCounter
from squeeze.codecs.stream.resources import Resources, Totals
from squeeze.codecs.stream.salvaged import Salvaged
from squeeze.codecs.stream.settings import Settings, from_header
from squeeze.errors import (
    DamagedError,
    FormatError,
    TruncatedError,
)
from squeeze.system.binary import PIECE, copy_pieces, read_exactly, read_some
from squeeze.system.limits import Limits


class _Place(NamedTuple):
    """The place of a block by the index, or by its own header if there is no index."""

    offset: int  # offset of its header
    raw: int  # raw bytes
    coded: int  # bytes with the header


class _Contradicted(DamagedError):
    """A block's header and the index give different lengths."""


class _SourceLost(DamagedError):
    """A block repeats bytes of a damaged block."""


@dataclass
class _SalvagedStream:
    """A stream, as far as its blocks can be found."""

    start: int
    header_size: int
    kind: int | None = None  # kind of the coded block in a short stream
    places: list[_Place] = field(default_factory=list)
    checksum: int | None = None  # XXH3-64 of all raw bytes, if the index is intact

    @property
    def short(self) -> bool:
        return self.kind is not None

    def read_block_header(self, file: BinaryIO) -> container.BlockHeader | None:
        """Read the next block's header."""
        if self.kind is None:
            return container.read_block_header(file)
        return container.read_short_block_header(file, self.kind)


def salvage_stream(
    source: BinaryIO, sink: BinaryIO | None, resources: Resources, missing: str = "zeros", progress: Progress = None
) -> Totals:
    """Write all that can be restored.

    Args:
        source: a damaged .sqz file.
        sink: the file to write, or None to check only.
        resources: dictionary, language model, limits.
        missing: "zeros" fills lost bytes with zeros, "skip" leaves them out.
        progress: is called with the number of raw bytes done since its last call.

    Returns:
        totals, whose `damage` lists lost ranges and what is unproved.

    Raises:
        FormatError: if `source` is not a .sqz file at all.
        LimitError: if a limit is exceeded.
    """
    file = source if source.seekable() else _read_all(source, resources.limits)
    end = file.seek(0, io.SEEK_END)
    if end == 0:
        raise FormatError("not a .sqz file: it is empty")
    restored = Salvaged(sink, resources.limits, missing, end)
    streams, reason = _by_index(file, end, resources.limits), None
    if streams is None:
        streams, reason = _by_walk(file, end, resources.limits)
    total = sum(place.raw for stream in streams for place in stream.places)
    restored.expect(total)
    if restored.may_miss_too_much(total):  # before anything is written
        rehearsed = Salvaged(None, resources.limits, missing, end)
        for stream in streams:
            _restore_stream(file, stream, resources, rehearsed, None)
    damage = [line for stream in streams for line in _restore_stream(file, stream, resources, restored, progress)]
    if reason:
        damage.append(f"what follows byte {restored.place} is lost: {reason}")
    return Totals(restored.finish(), end, tuple(damage))


def _read_all(source: BinaryIO, limits: Limits) -> BinaryIO:
    """Read all of a pipe into memory."""
    buffer = io.BytesIO()
    while piece := read_some(source, PIECE):
        limits.need_memory(buffer.tell() + len(piece), "salvaging what comes through a pipe")
        buffer.write(piece)
    return buffer


def _by_index(file: BinaryIO, end: int, limits: Limits) -> list[_SalvagedStream] | None:
    """Return every stream by the indexes alone, or None if an index is damaged."""
    streams = []
    try:
        for index, start, _ in indexes_from_end(file, end, EntryCounter(limits)):
            places, offset = [], start + index.header_size
            for raw, coded in index.entries:
                places.append(_Place(offset, raw, coded))
                offset += coded
            streams.append(_SalvagedStream(start, index.header_size, None, places, index.checksum))
    except FormatError:
        return None
    return streams[::-1]


def _by_walk(file: BinaryIO, end: int, limits: Limits) -> tuple[list[_SalvagedStream], str | None]:
    """Return every stream from the start of the file, and the reason if the walk ended early."""
    streams: list[_SalvagedStream] = []
    entries = EntryCounter(limits)
    file.seek(0)
    try:
        while (start := file.tell()) < end:
            header = container.read_header(file, padded=start > 0)
            if header is None:
                break
            start = file.tell() - header.size
            streams.append(_SalvagedStream(start, header.size, header.kind if header.short else None))
            entries.add()
            if not _walk(file, streams[-1], header.size, end, entries):
                return streams, "the file was cut off"
    except DamagedError as error:
        return streams, str(error)
    except FormatError as error:
        if not streams:
            raise
        return streams, str(error)
    return streams, None


def _walk(file: BinaryIO, stream: _SalvagedStream, header_size: int, end: int, entries: EntryCounter) -> bool:
    """Find the blocks of the stream whose header was just read; return whether all are there.

    Raises:
        FormatError: if a header is damaged.
    """
    written = Index(header_size)
    while (block := stream.read_block_header(file)) is not None:
        offset = file.tell() - block.size
        if file.tell() + block.payload_length > end:
            return False
        place = _Place(offset, block.raw_length, block.size + block.payload_length)
        stream.places.append(place)
        written.entries.append((place.raw, place.coded))
        entries.add()
        file.seek(block.payload_length, io.SEEK_CUR)
        if stream.short:
            return True
    after = file.tell()
    try:
        stream.checksum = read_checksum(file, written)
    except TruncatedError:
        raise
    except DamagedError:
        file.seek(after + len(index_bytes(written)) - 1)
    return True


def _restore_stream(
    file: BinaryIO, stream: _SalvagedStream, resources: Resources, restored: Salvaged, progress: Progress
) -> list[str]:
    """Restore a stream, and return lines about lost, contradictory and unproved parts."""
    settings, damage = _settings(file, stream, resources)
    first, digest, lost = restored.place, xxhash.xxh3_64(), 0
    loaded = _loaded(file, stream, settings, first) if settings.window else None
    begins = accumulate((place.raw for place in stream.places), initial=0)
    for place, begin in zip(stream.places, begins, strict=False):
        try:
            pieces = _restore(file, stream, place, settings, restored, progress, (begin, loaded))
        except FormatError as error:
            named = isinstance(error, (_Contradicted, _SourceLost))
            reason = str(error) if named else "their block is damaged"
            damage.append(f"bytes {restored.place} to {restored.place + place.raw} are lost: {reason}")
            restored.miss(place.raw)
            lost += 1
            continue
        for piece in pieces:
            digest.update(piece)
            restored.write(piece)
    if stream.short or lost == len(stream.places) > 0:
        return damage  # proved by the block's own checksum, or nothing restored
    blocks = f"the order of the{' other' * bool(lost)} blocks in bytes {first} to {restored.place} is unproved"
    if lost:
        return [*damage, f"{blocks}: the checksum of all of them cannot be compared"]
    if stream.checksum is None:
        return [*damage, f"{blocks}, and whether they are all: the index with the checksum of all of them is lost"]
    if stream.checksum != digest.intdigest():
        why = "the checksum of all of them differs, so some are missing, doubled or in another's place"
        return [*damage, f"{blocks}: {why}"]
    return damage


def _settings(file: BinaryIO, stream: _SalvagedStream, resources: Resources) -> tuple[Settings, list[str]]:
    """Return the settings of a stream's header, without a level if it is damaged, and lines about the damage."""
    try:
        file.seek(stream.start)
        header = container.read_header(file)
        if header is None or (header.size, header.short) != (stream.header_size, stream.short):
            raise DamagedError("the index does not agree with the header")
        return from_header(header, resources), []
    except FormatError as error:
        return Settings(short=stream.short), [f"the stream at byte {stream.start} of the file: {error}"]


def _loaded(file: BinaryIO, stream: _SalvagedStream, settings: Settings, first: int) -> LoadedBlocks:
    """Return the blocks of a stream that later ones may repeat; its raw bytes begin at `first` in the output."""
    places = [place for place in stream.places if place.raw]
    starts = [0, *accumulate(place.raw for place in places)]

    def load(number: int) -> Literals:
        begin, end = (first + start for start in starts[number : number + 2])
        try:
            return load_block(file, _header(file, stream, places[number]), starts[number], settings)
        except FormatError:
            raise _SourceLost(f"they repeat bytes {begin} to {end}, whose block is damaged") from None

    return LoadedBlocks(starts[:-1], load, settings.window, settings.limits)


def _header(file: BinaryIO, stream: _SalvagedStream, place: _Place) -> container.BlockHeader:
    """Read the header of a block, and leave the file at its payload.

    Raises:
        FormatError: if it is damaged.
    """
    file.seek(place.offset)
    header = stream.read_block_header(file)
    if header is None:
        raise DamagedError("a block's header is damaged")
    if (header.raw_length, header.size + header.payload_length) != (place.raw, place.coded):
        raise _Contradicted("the index gives other lengths than their block")
    return header


def _restore(
    file: BinaryIO,
    stream: _SalvagedStream,
    place: _Place,
    settings: Settings,
    restored: Salvaged,
    progress: Progress,
    before: tuple[int, LoadedBlocks | None],
) -> Iterable[bytes | memoryview]:
    """Return the raw bytes of a block in pieces.

    Args:
        file: the damaged file.
        stream: its stream.
        place: of the block.
        settings: those of the stream.
        restored: the output.
        progress: is called with the number of raw bytes done since its last call.
        before: raw bytes of the stream before the block, and its blocks, if later ones may repeat them.

    Raises:
        FormatError: if it is damaged.
    """
    header = _header(file, stream, place)
    restored.need(place.raw)
    check_block_memory(settings, header.kind, place.raw, header.payload_length)
    if header.kind == container.STORED:
        return _stored(file, place, header, settings)
    coded = container.Coded(header.kind, read_exactly(file, header.payload_length))
    begin, loaded = before
    if header.kind == container.REPEATS and loaded:
        copies, rest = decode_repeats(coded, place.raw, settings, progress)
        data = restore(copies, rest, begin, loaded.at)
    else:
        data = decode_block(coded, place.raw, settings, progress)
    check_raw(data, header.checksum, settings.short)
    return [data.data]


def _stored(file: BinaryIO, place: _Place, header: container.BlockHeader, settings: Settings) -> Iterable[bytes]:
    state = xxhash.xxh3_64()
    for piece in copy_pieces(file, header.raw_length):
        state.update(piece)
    if not container.matches_checksum(state.intdigest(), header.checksum, settings.short):
        raise DamagedError("a stored block's checksum differs")
    file.seek(place.offset + header.size)
    return copy_pieces(file, header.raw_length)
