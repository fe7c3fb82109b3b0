"""Decompression, from .sqz to bytes; compressor.py is the inverse."""

import io
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
import xxhash

from squeeze.codecs.stream import container, memory
from squeeze.codecs.stream.container import BlockHeader, Header
from squeeze.codecs.stream.copies import Copies, Literals, restore
from squeeze.codecs.stream.decoding import Progress, check_raw, decode_block, decode_repeats, report
from squeeze.codecs.stream.estimates import check_block_memory
from squeeze.codecs.stream.footer import Index, read_following_index
from squeeze.codecs.stream.history import History, ReadBack
from squeeze.codecs.stream.index import read_index
from squeeze.codecs.stream.resources import DictionarySource, Resources, Totals
from squeeze.codecs.stream.salvage import salvage_stream
from squeeze.codecs.stream.settings import Settings, from_header
from squeeze.errors import DamagedError, FormatError
from squeeze.system.binary import copy_pieces, read_exactly, read_some
from squeeze.system.limits import Limits
from squeeze.system.parallel import ordered_map
from squeeze.system.sparse import SparseSink


def decompress(
    data: bytes,
    *,
    threads: int | None = None,
    model: str | os.PathLike[str] | None = None,
    adapter: str | os.PathLike[str] | None = None,
    device: str = "cpu",
    dictionary: DictionarySource = None,
    limits: Limits | None = None,
) -> bytes:
    """Restore bytes that `compress` compressed.

    Args:
        data: a .sqz file.
        threads: number of threads.
        model: path of the language model, if the file needs one that is not found by itself.
        adapter: path of the model's adapter.
        device: "auto", "cpu", "cuda" or "cuda:N"; it may differ from the one that compressed.
        dictionary: the dictionary that compressed the file, or its path.
        limits: of memory and output; that of memory includes the result.

    Raises:
        FormatError: if the file is damaged or of another version. Wrong bytes are never returned.
        ModelError: if the language model is missing or another one.
        DictionaryError: if the dictionary is missing or another one.
        DeviceError: if the device is missing.
        LimitError: if a limit is exceeded.
    """
    limits = limits or Limits()
    sink = _LimitedBuffer(limits)
    language: dict[str, Any] = {"model": model, "adapter": adapter, "device": device}
    decompress_stream(io.BytesIO(data), sink, threads=threads, dictionary=dictionary, limits=limits, **language)
    return sink.getvalue()


class _LimitedBuffer(io.BytesIO):
    """A buffer for the result that keeps within the limit of memory."""

    def __init__(self, limits: Limits):
        super().__init__()
        self._limits = limits

    def write(self, data: Any, /) -> int:
        self._limits.need_memory(self.tell() + len(data), "what is restored in memory")
        return super().write(data)


def decompress_stream(  # noqa: PLR0913
    source: BinaryIO,
    sink: BinaryIO | None,
    *,
    threads: int | None = None,
    model: str | os.PathLike[str] | None = None,
    adapter: str | os.PathLike[str] | None = None,
    device: str = "cpu",
    dictionary: DictionarySource = None,
    progress: Progress = None,
    salvage: bool = False,
    missing: str = "zeros",
    limits: Limits | None = None,
) -> Totals:
    """Restore every stream of a .sqz file or pipe into `sink`, or only check them if `sink` is None.

    In a regular file, blocks of zeros become holes. If the limit of memory allows fewer blocks at once than there are
    threads, fewer are decoded at once.

    Args:
        source: a .sqz file.
        sink: the file to write, or None.
        threads: number of threads.
        model: path of the language model, if the file needs one that is not found by itself.
        adapter: path of the model's adapter.
        device: "auto", "cpu", "cuda" or "cuda:N"; it may differ from the one that compressed.
        dictionary: the dictionary that compressed the file, or its path.
        progress: is called with the number of raw bytes done since its last call.
        salvage: restore undamaged blocks of a damaged file; `Totals.damage` lists what is lost and what is unproved.
        missing: "zeros" fills lost bytes with zeros, "skip" leaves them out.
        limits: of memory and output, checked before memory is allocated.

    Raises:
        FormatError: if the file is damaged or of another version, unless it is salvaged.
        LimitError: if a limit is exceeded.
    """
    resources = Resources(threads, model, dictionary, limits or Limits(), adapter, device)
    if salvage:
        return salvage_stream(source, sink, resources, missing, progress)
    return _Decompression(source, sink, resources, progress).run()


class _CountingSource:
    """A source that counts the bytes read."""

    def __init__(self, source: BinaryIO):
        self._source = source
        self._position = 0

    def read(self, size: int) -> bytes:
        data = read_some(self._source, size)
        self._position += len(data)
        return data

    def tell(self) -> int:
        return self._position


class _Part(NamedTuple):
    """A coded block of a stream, or a piece of a stored block, which has no header here."""

    block: BlockHeader | None
    data: bytes
    memory: int  # bytes that decoding it takes


class _Decoded(NamedTuple):
    """The bytes that a block codes itself, and its copies and checksum if it has any copies."""

    rest: np.ndarray
    copies: Copies | None = None
    checksum: int = 0

    def restored(self, history: History) -> np.ndarray:
        """Return the raw bytes of the block, uint8, and add it to the blocks before it."""
        begin, size = history.end, self.copies.size if self.copies else self.rest.size
        data = self.rest
        if self.copies:
            data = restore(self.copies, self.rest, begin, history.at)
            check_raw(data, self.checksum)
        history.add(Literals(begin, size, self.rest, self.copies))
        return data


def _reading_back(sink: BinaryIO | None) -> ReadBack | None:
    """Return a function that reads what is written to a sink from its current position on; None if it cannot."""
    try:
        if sink is None or not (sink.readable() and sink.seekable()):
            return None
        first = sink.tell()
    except (OSError, ValueError, AttributeError):
        return None

    def read(begin: int, end: int) -> np.ndarray:
        place, data = sink.tell(), np.zeros(end - begin, np.uint8)  # a hole at the end is not there yet
        sink.seek(first + begin)
        found = np.frombuffer(sink.read(min(end - begin, place - first - begin)), np.uint8)
        sink.seek(place)
        data[: found.size] = found
        return data

    return read


class _Decompression:
    """The decompression of one file."""

    def __init__(self, source: BinaryIO, sink: BinaryIO | None, resources: Resources, progress: Progress):
        self._file, self._source = source, cast(BinaryIO, _CountingSource(source))
        self._sink, self._output = None if sink is None else SparseSink(sink), sink
        self._resources, self._limits, self._progress = resources, resources.limits, progress
        self._raw = 0  # bytes of all blocks whose headers were read

    def run(self) -> Totals:
        self._need_all()
        while (header := self._next_header()) is not None:
            settings = from_header(header, self._resources)
            if header.short:
                self._short(settings, header.kind)
            else:
                self._stream(settings, header.size)
        if not self._source.tell():
            raise FormatError("not a .sqz file: it is empty")
        if self._sink is not None:
            self._sink.finish()
        return Totals(self._raw, self._source.tell())

    def _next_header(self) -> Header | None:
        """Read the next stream's header, or return None at the end.

        Raises:
            FormatError: if something other than a stream follows.
        """
        place = self._source.tell()
        try:
            return container.read_header(self._source, padded=place > 0)
        except container.ForeignError:
            if not place:
                raise
            raise container.TrailingError.after(place) from None

    def _need_all(self) -> None:
        """Check the output limit against the index. The index may lie, so all blocks are counted again later.

        Raises:
            LimitError: if the output is too large.
        """
        if self._limits.output is None or not self._file.seekable() or self._file.tell():
            return
        with suppress(FormatError):
            total = sum(stream.raw_size for stream in read_index(self._file, self._limits))
            self._limits.need_output(total)
        self._file.seek(0)

    def _need(self, block: BlockHeader, settings: Settings) -> int:
        """Return the memory that decoding a block takes.

        Raises:
            LimitError: if it, or the output with this block, is too much.
        """
        self._raw += block.raw_length
        self._limits.need_output(self._raw)
        return check_block_memory(settings, block.kind, block.raw_length, block.payload_length)

    def _short(self, settings: Settings, kind: int) -> None:
        """Decode a short stream after its header."""
        block = container.read_short_block_header(self._source, kind)
        self._need(block, settings)
        payload = read_exactly(self._source, block.payload_length)
        if block.kind == container.STORED:
            data = np.frombuffer(payload, np.uint8)
            report(self._progress, data.size)
        else:
            data = decode_block(container.Coded(block.kind, payload), block.raw_length, settings, self._progress)
        check_raw(data, block.checksum, short=True)
        if self._sink is not None:
            self._sink.write(data.data)

    def _stream(self, settings: Settings, header_size: int) -> None:
        """Decode a long stream after its header."""
        index, digest = Index(header_size), xxhash.xxh3_64()

        def decode(part: _Part) -> _Decoded:
            if part.block is None:
                return _Decoded(np.frombuffer(part.data, np.uint8))
            coded, length = container.Coded(part.block.kind, part.data), part.block.raw_length
            if coded.kind == container.REPEATS:
                copies, rest = decode_repeats(coded, length, settings, self._progress)
                return _Decoded(rest, copies, part.block.checksum)
            data = decode_block(coded, length, settings, self._progress)
            check_raw(data, part.block.checksum)
            return _Decoded(data)

        threads, fits = settings.allotment.blocks, self._limits.allows_memory
        history = History(settings.window, self._limits, _reading_back(self._output))
        for block in ordered_map(decode, self._parts(settings, index), threads, lambda part: part.memory, fits):
            data = block.restored(history)
            digest.update(data.data)
            if self._sink is not None:
                self._sink.write(data.data)
        index.checksum = digest.intdigest()
        read_following_index(self._source, index)

    def _parts(self, settings: Settings, index: Index) -> Iterator[_Part]:
        """Yield coded blocks with their headers, and stored blocks, checked, in pieces."""
        source, entries = self._source, memory.EntryCounter(self._limits)
        while (block := container.read_block_header(source)) is not None:
            index.entries.append((block.raw_length, block.size + block.payload_length))
            entries.add()
            needed = self._need(block, settings)
            if block.kind != container.STORED:
                yield _Part(block, read_exactly(source, block.payload_length), needed)
                continue
            state = xxhash.xxh3_64()
            for piece in copy_pieces(source, block.payload_length):
                state.update(piece)
                report(self._progress, len(piece))
                yield _Part(None, piece, len(piece))
            if state.intdigest() != block.checksum:
                raise DamagedError("a stored block's checksum differs: the file is damaged")
