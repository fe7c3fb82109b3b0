"""Random access: a .sqz file as a seekable, read-only file object, and the members of a shard as files of their own."""

import io
import os
from bisect import bisect_right
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
import xxhash

from squeeze.codecs.stream import container
from squeeze.codecs.stream.container import MAX_BLOCK, BlockHeader, Header, read_block_header, read_short_block_header
from squeeze.codecs.stream.copies import Literals
from squeeze.codecs.stream.decoding import check_raw, decode_block, load_block
from squeeze.codecs.stream.estimates import check_block_memory
from squeeze.codecs.stream.history import LoadedBlocks
from squeeze.codecs.stream.index import Stream, header_of, indexes_from_end, read_index
from squeeze.codecs.stream.members import Member, MemberFile, Members, read_members, read_tail
from squeeze.codecs.stream.memory import EntryCounter
from squeeze.codecs.stream.resources import DictionarySource, Resources
from squeeze.codecs.stream.settings import Settings, from_header
from squeeze.errors import DamagedError, FormatError, SqueezeError, printable
from squeeze.system.binary import SizedFile, copy_pieces, read_exactly
from squeeze.system.limits import Limits
from squeeze.system.remote_file import will_read
from squeeze.system.storage import remote


class Place(NamedTuple):
    """The place of a block by the index; its header is not read yet."""

    stream: Header
    raw_offset: int
    raw_length: int
    coded_offset: int  # offset of the block's header
    coded_length: int  # bytes with the header
    checksum: int  # of its stream, see index.Stream


def read_places(file: BinaryIO, limits: Limits | None = None) -> list[Place]:
    """Return the place of every block from headers and indexes, or as `read_index` does if a stream is short."""
    limits = limits or Limits()
    try:
        return _places_from_end(file, file.seek(0, io.SEEK_END), EntryCounter(limits))
    except FormatError:
        streams = read_index(file, limits)
    return [
        Place(header, block.raw_offset, block.raw_length, block.coded_offset, block.coded_length, stream.checksum)
        for stream, header in map(_with_header, streams)
        for block in stream.blocks
    ]


def _with_header(stream: Stream) -> tuple[Stream, Header]:
    kind = stream.blocks[0].kind if stream.short else None
    return stream, Header(stream.header, 0, stream.short, kind)


def _places_from_end(file: BinaryIO, end: int, entries: EntryCounter) -> list[Place]:
    if not end:
        raise FormatError("not a .sqz file: it is empty")
    streams = [
        (header_of(file, index, start), index, start) for index, start, _ in indexes_from_end(file, end, entries)
    ]
    places, raw_offset = [], 0
    for header, index, start in reversed(streams):
        offset = start + index.header_size
        for raw, coded in index.entries:
            places.append(Place(header, raw_offset, raw, offset, coded, index.checksum))
            raw_offset += raw
            offset += coded
    return places


def read_block(file: BinaryIO, place: Place) -> BlockHeader:
    """Read a block's header, and leave the file at its payload.

    Raises:
        DamagedError: if it does not agree with the index.
    """
    file.seek(place.coded_offset)
    header = read_short_block_header(file, place.stream.kind) if place.stream.short else read_block_header(file)
    if header is None or (header.raw_length, header.size + header.payload_length) != (
        place.raw_length,
        place.coded_length,
    ):
        raise DamagedError("the index does not agree with the blocks: the file is damaged")
    return header


def open_reader(
    file: Path | BinaryIO,
    *,
    threads: int | None = None,
    model: str | os.PathLike[str] | None = None,
    adapter: str | os.PathLike[str] | None = None,
    device: str = "cpu",
    dictionary: DictionarySource = None,
    limits: Limits | None = None,
    closes: bool = False,
) -> "Reader":
    """Open a .sqz file to read its raw content at any position.

    Args:
        file: a path, or a seekable binary file.
        threads: number of threads.
        model: path of the language model.
        adapter: path of the model's adapter.
        device: "auto", "cpu", "cuda" or "cuda:N".
        dictionary: the dictionary that compressed the file, or its path.
        limits: of memory.
        closes: whether a binary file is closed with the result.

    Raises:
        FormatError: if the file is damaged.
        DictionaryError: if it needs another dictionary.
        DeviceError: if the device is missing.
        LimitError: if a limit is exceeded.
    """
    resources = Resources(threads, model, dictionary, limits or Limits(), adapter, device)
    path = cast(Path, file) if isinstance(file, Path) or remote(file) else None
    with ExitStack() as opened:  # closes the file again if it cannot be read
        source: BinaryIO = opened.enter_context(path.open("rb")) if path else cast(BinaryIO, file)
        if closes:
            opened.enter_context(source)
        reader = Reader(SqueezeFile(source, resources, path, closes=bool(path or closes)))
        opened.pop_all()
        return reader


class Reader(io.BufferedReader):
    """The raw content of a .sqz file as a file."""

    raw: "SqueezeFile"

    def members(self) -> dict[str, Member]:
        """Return the files of a shard by name, in its order.

        Raises:
            FormatError: if there is no index of members, or it is damaged.
        """
        return self.raw.members.by_name

    def member(self, name: str) -> io.BufferedReader:
        """Open a file of a shard: seekable, and for one thread at a time together with other reads of this shard.

        It is compared with its checksum if it is read from start to end.

        Raises:
            FormatError: if there is no index of members, or it is damaged.
            SqueezeError: if there is no such file.
        """
        found = self.members().get(name)
        if found is None:
            raise SqueezeError(f"no member {printable(name)}: `squeeze list` shows the members")
        return io.BufferedReader(MemberFile(found, self.raw.read_at))


class SqueezeFile(SizedFile):
    """The unbuffered file behind `Reader`."""

    def __init__(self, source: BinaryIO, resources: Resources, path: Path | None = None, closes: bool = True):
        self._closes = closes
        self._source, self._path, self._limits = source, path, resources.limits
        settings: dict[int, Settings] = {}  # of each stream, by the id of its header
        self._first: dict[int, int] = {}  # number of its first block
        self._blocks: list[tuple[Place, Settings]] = []
        for place in read_places(source, resources.limits):
            known = settings.get(id(place.stream)) or from_header(place.stream, resources)
            settings[id(place.stream)] = known
            self._first.setdefault(id(place.stream), len(self._blocks))
            self._blocks += [(place, known)] * bool(place.raw_length)
        self._starts = [place.raw_offset for place, _ in self._blocks]
        super().__init__(sum(place.raw_length for place, _ in self._blocks))
        self._number = -1  # number of the block that is kept
        self._data = np.zeros(0, np.uint8)
        self._loaded: tuple[int, LoadedBlocks] | None = None  # blocks that others repeat, and the first of their stream
        self._checked: dict[int, int] = {}  # offsets of stored blocks whose checksum was right

    def readinto(self, buffer: Any) -> int:
        count = self.read_at(self._position, buffer)
        self._position += count
        return count

    def read_at(self, position: int, buffer: Any) -> int:
        """Fill the start of a buffer with raw content of one block from a position on; return the number of bytes."""
        if position >= self._size:
            return 0
        number = bisect_right(self._starts, position) - 1
        place, settings = self._blocks[number]
        start = position - place.raw_offset
        count = min(len(buffer), place.raw_length - start)
        buffer[:count] = self._read(number, place, settings, start, count)
        return count

    @cached_property
    def members(self) -> Members:
        """The index in a file next to this one, or in its last stream.

        Raises:
            FormatError: It is missing, damaged, or that of another file.
        """
        found = read_members(self._path, self._limits) if self._path else None
        if found is None:
            found = read_tail(self._source, read_index(self._source, self._limits), self._limits)
            if found is None:
                raise FormatError("there is no index of members: use an archive or a shard of `squeeze compress`")
            return found
        first = self._blocks[0][0] if self._blocks and found.size == self._size else None
        if first is None or not container.matches_checksum(found.checksum, first.checksum, first.stream.short):
            raise FormatError("the index of members is that of another shard")
        return found

    def _read(self, number: int, place: Place, settings: Settings, start: int, count: int) -> bytes:
        if number in self._checked:
            self._source.seek(self._checked[number] + start)
            return read_exactly(self._source, count)
        if number != self._number:
            self._source.seek(place.coded_offset)
            will_read(self._source, min(place.coded_length, MAX_BLOCK))
            block = read_block(self._source, place)
            if block.kind == container.STORED:
                return self._read_stored(number, block, settings.short, start, count)
            self._number, self._data = -1, self._data[:0]  # frees memory for the next
            data = self._decode(number, block, settings)
            check_raw(data, block.checksum, settings.short)
            self._number, self._data = number, data
        return self._data[start : start + count].tobytes()

    def _read_stored(self, number: int, block: BlockHeader, short: bool, start: int, count: int) -> bytes:
        """Check a stored block, which may be larger than memory, and return the bytes that are wanted."""
        begin, state, wanted, position = self._source.tell(), xxhash.xxh3_64(), bytearray(), 0
        for piece in copy_pieces(self._source, block.payload_length):
            state.update(piece)
            wanted += piece[max(start - position, 0) : max(start + count - position, 0)]
            position += len(piece)
        if not container.matches_checksum(state.intdigest(), block.checksum, short):
            raise DamagedError("a stored block's checksum differs: the file is damaged")
        self._checked[number] = begin
        return bytes(wanted)

    def _decode(self, number: int, block: BlockHeader, settings: Settings) -> np.ndarray:
        """Return the raw bytes of a block whose header was just read, and is not stored."""
        if not settings.window:
            return self._decode_alone(block, settings)
        first = self._first[id(self._blocks[number][0].stream)]
        if self._loaded is None or self._loaded[0] != first:
            starts = [start - self._starts[first] for start in self._starts[first:]]
            load = partial(self._load, first)
            self._loaded = first, LoadedBlocks(starts, load, settings.window, settings.limits)
        return self._loaded[1].restored(number - first)

    def _decode_alone(self, block: BlockHeader, settings: Settings) -> np.ndarray:
        check_block_memory(settings, block.kind, block.raw_length, block.payload_length)
        payload = read_exactly(self._source, block.payload_length)
        return decode_block(container.Coded(block.kind, payload), block.raw_length, settings)

    def _load(self, first: int, number: int) -> Literals:
        """Return what a block codes itself. The checksums of the blocks that repeat it prove it.

        Args:
            first: the first block of the stream.
            number: of the block in the stream.
        """
        place, settings = self._blocks[first + number]
        block, begin = read_block(self._source, place), place.raw_offset - self._starts[first]
        return load_block(self._source, block, begin, settings)

    def close(self) -> None:
        if not self.closed and self._closes:
            self._source.close()
        super().close()
