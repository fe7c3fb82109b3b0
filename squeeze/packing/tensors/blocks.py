"""Lossless coding of tensors in the block types of GGUF: scales, minima and codes are coded apart from each other."""

import struct
from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from squeeze.checkpoint.ggml_types import BLOCKS
from squeeze.numerics.jit import kernel
from squeeze.packing.tensors import floats
from squeeze.packing.tensors.block_order import SUBBLOCKS, WINDOW, has_order, order_of
from squeeze.packing.tensors.block_peaks import PEAKS, Places, Rest
from squeeze.packing.tensors.block_types import Stream, streams_of
from squeeze.packing.tensors.content import PART, Content, InMemory, InSegments, Section, whole
from squeeze.packing.tensors.float_payload import Array
from squeeze.packing.tensors.float_writer import Behind, Writer, copy
from squeeze.packing.tensors.tables import damaged
from squeeze.system.arena import thread_buffer

__all__ = ["DecodedBlocks", "write"]

FORMAT = 1
_HEAD = 8
_BLOCKS = 1 << 10  # blocks that are decoded at a time
_COARSE = np.uint16(0xFFF0)  # bits of a scale that are subtracted from an offset, whose lowest bits may be zeros
# `write` of the coder of streams, and the content of one of its payloads; the scales of blocks come last.
Coder = Callable[[Content, str, Writer, int, int, Content | None], int]
Reader = Callable[[Content, str, int, Content | None], Content]
_SCALED = "Q8_0"  # codes of 8 bits are predicted as products with their scales


def write(
    content: Content,
    dtype: str,
    writer: Writer,
    coder: Coder,
    threads: int,
    shape: tuple[int, ...],
    by_neighbours: bool = False,
) -> int:
    """Write the payload of a tensor, a multiple of 8 bytes; return its bytes, or 0 if it is no shorter.

    Args:
        content: the tensor's bytes.
        dtype: its type, a key of BLOCKS.
        writer: where the payload goes.
        coder: encodes streams.
        threads: threads that code.
        shape: the tensor's shape, in values.
        by_neighbours: whether the coder predicts from neighbours.
    """
    if not content.size or content.size % BLOCKS[dtype]:
        return 0
    streams = streams_of(dtype)
    contents: list[Content] = [_InStream(content, BLOCKS[dtype], streams, number) for number in range(len(streams))]
    ordered = has_order(dtype, by_neighbours)
    if ordered:
        contents[-1] = _InOrder(content, dtype, tuple(contents))
    kinds = [stream.dtype for stream in streams]
    peaks = PEAKS.get(dtype) if by_neighbours else None
    if peaks and not peaks.fit(contents[-1]):
        peaks = None
    if peaks:
        codes = contents.pop()
        contents += [Places(codes, peaks), Rest(codes, peaks)]
        kinds.insert(-1, "U8")
    bounds = sum(floats.max_size(one.size, kind) + one.size for one, kind in zip(contents, kinds, strict=True))
    end, lengths = _HEAD + 8 * len(contents), []
    writer.reserve(end + bounds + 64)
    for one, kind in zip(contents, kinds, strict=True):
        data: Content = InMemory(whole(one, threads)) if isinstance(content, InMemory) else one
        inner = Behind(writer, end)
        scales = contents[0] if dtype == _SCALED and one is contents[-1] else None
        size = coder(data, kind, inner, threads, _columns(shape, data.size), scales)
        size = size if 0 < size < data.size else copy(data, inner, 0, threads)
        lengths.append(size)
        writer.put(end + size, np.zeros(-size % 8, np.uint8))
        end += size + -size % 8
    writer.put(
        0,
        np.frombuffer(
            struct.pack(f"<II{len(lengths)}Q", FORMAT, ordered | (peaks is not None) << 1, *lengths), np.uint8
        ),
    )
    return end if end < content.size else 0


def _columns(shape: tuple[int, ...], size: int) -> int:
    """Return how many of `size` codes, with or without a peak of each 32, are in a row of a matrix, or 0."""
    if len(shape) > 1 and size == prod(shape):
        return shape[-1]
    if len(shape) > 1 and 32 * size == 31 * prod(shape) and shape[-1] % 32 == 0:
        return shape[-1] // 32 * 31
    return 0


@kernel
def _gather(data, block, elements, first, last, out):
    """Fill `out` with elements first to last of a stream; `data` begins with the block of the first one."""
    per_block, k, place = elements.shape[0], first % elements.shape[0], 0
    for i in range(last - first):
        row = elements[k]
        value = (np.int64(data[place + row[0]]) >> row[1]) & ((1 << row[2]) - 1)
        if row[5]:
            value |= ((np.int64(data[place + row[3]]) >> row[4]) & ((1 << row[5]) - 1)) << row[2]
        out[i] = np.uint8(value)
        k += 1
        if k == per_block:
            k, place = 0, place + block


@kernel
def _scatter(values, elements, block, out):
    """Put the elements of whole blocks at their places in `out`, whose other bits stay."""
    per_block = elements.shape[0]
    for number in range(values.size // per_block):
        place = number * block
        for k in range(per_block):
            row, value = elements[k], np.int64(values[number * per_block + k])
            out[place + row[0]] |= np.uint8((value & ((1 << row[2]) - 1)) << row[1])
            if row[5]:
                out[place + row[3]] |= np.uint8((value >> row[2] & ((1 << row[5]) - 1)) << row[4])


def _take(data: Array, block: int, stream: Stream, first: int, last: int, out: Array) -> None:
    """Fill `out` with elements first to last of a stream; `data` has the blocks from that of the first one on."""
    count, is_whole = len(stream.elements), first % len(stream.elements) == 0 == last % len(stream.elements)
    if stream.begin < 0 or not is_whole:
        _gather(_as_compiled(data), block, stream.elements, first, last, out)
    elif count == 2 and block % 2 == 0 == stream.begin % 2:
        out.view(np.uint16)[:] = data.view(np.uint16)[stream.begin // 2 :: block // 2]
    else:
        out.reshape(-1, count)[:] = data.reshape(-1, block)[:, stream.begin : stream.begin + count]


def _put(values: Array, stream: Stream, block: int, out: Array) -> None:
    """Put the elements of whole blocks at their places in `out`, of which no other bits change."""
    count = len(stream.elements)
    if stream.begin < 0:
        _scatter(values, stream.elements, block, out)
    elif count == 2 and block % 2 == 0 == stream.begin % 2:
        out.view(np.uint16)[stream.begin // 2 :: block // 2] = values.view(np.uint16)
    else:
        out.reshape(-1, block)[:, stream.begin : stream.begin + count] = values.reshape(-1, count)


class _InStream:
    """A content with one stream of the blocks of another one."""

    def __init__(self, content: Content, block: int, streams: tuple[Stream, ...], number: int):
        self._content, self._block, self._stream, self._first = content, block, streams[number], streams[0]
        self.size = content.size // block * len(self._stream.elements)

    def fill(self, begin: int, out: Array) -> None:
        per_block = len(self._stream.elements)
        step = max(PART // self._block, 1) * per_block
        for start in range(begin, begin + out.size, step):
            stop = min(start + step, begin + out.size)
            first, last = start // per_block, -(-stop // per_block)
            data = _bytes(self._content, first * self._block, last * self._block)
            part = out[start - begin : stop - begin]
            if self._stream.dtype != "U16":
                _take(data, self._block, self._stream, start, stop, part)
                continue
            words = np.empty((2, last - first), np.uint16)
            for row, stream in zip(words, (self._stream, self._first), strict=True):
                _take(data, self._block, stream, 2 * first, 2 * last, row.view(np.uint8))
            part[:] = (words[0] - (words[1] & _COARSE)).view(np.uint8)[start - 2 * first :][: part.size]


def _bytes(content: Content, begin: int, end: int) -> Array:
    """Return bytes begin to end; unlike `bytes_of`, not in the memory that `fill` may have been given."""
    if isinstance(content, InMemory):
        return content.data[begin:end]
    out = thread_buffer("blocks", end - begin)
    content.fill(begin, out)
    return out


def _as_compiled(data: Array) -> Array:
    """Return bytes as compiled code takes them: aligned and writable, although nothing is written."""
    return data if data.flags.carray else data.copy()


class _InOrder(InSegments):
    """The codes of another content's blocks in the order of their scales. streams: the contents of all streams."""

    room = "codes in order"

    def __init__(self, content: Content, dtype: str, streams: Sequence[Content]):
        self._streams, self._dtype, self._blocks = streams, dtype, content.size // BLOCKS[dtype]
        self._window = WINDOW // SUBBLOCKS.get(dtype, 1)
        self._width = streams[-1].size // self._blocks
        self.size, self.step = streams[-1].size, self._window * self._width

    def _decode(self, first: int, last: int, out: Array) -> None:
        for window in range(first, last):
            begin, end = window * self._window, min((window + 1) * self._window, self._blocks)
            words = list[Array]()
            for stream, content in zip(streams_of(self._dtype)[:-1], self._streams, strict=False):
                row = np.empty((end - begin) * len(stream.elements), np.uint8)
                content.fill(begin * len(stream.elements), row)
                words.append(_words(row, stream, words))
            order = order_of(self._dtype, words)
            codes = np.empty((order.places.size, (end - begin) * self._width // order.places.size), np.uint8)
            self._streams[-1].fill(begin * self._width, codes.reshape(-1))
            here = out[(begin - first * self._window) * self._width :][: codes.size].reshape(codes.shape)
            np.take(codes, order.places, axis=0, out=here, mode="clip")  # they are places, and a check takes longer
            order.flip(here)


def _words(values: Array, stream: Stream, before: Sequence[Array]) -> Array:
    """Return what a stream has as numbers: bits of float16 as uint16, or bytes. before: those of earlier streams."""
    if stream.dtype == "U16":
        found: Array = values.view(np.uint16) + (before[0] & _COARSE)
        return found
    return values.view(np.uint16) if stream.dtype == "F16" else values


class DecodedBlocks(InSegments):
    """A content that decodes a payload as it is read. reader: decodes streams.

    Raises DamagedError if the payload contradicts itself.
    """

    room = "decoded blocks"

    def __init__(self, payload: Content, dtype: str, size: int, reader: Reader):
        self._dtype, self._block, self._streams = dtype, BLOCKS[dtype], streams_of(dtype)
        ordered, lengths = _head(payload, dtype, len(self._streams))
        if size % self._block or not size:
            raise damaged("its blocks are cut off")
        end = _HEAD + 8 * len(lengths)
        self._peaks = PEAKS[dtype] if len(lengths) > len(self._streams) else None
        self._ordered, self._at_once = bool(ordered), WINDOW // SUBBLOCKS.get(dtype, 1) if ordered else _BLOCKS
        self.size, self.step = size, self._at_once * self._block
        if end + sum(length + -length % 8 for length in lengths) != payload.size:
            raise damaged("its length is not that of its parts")
        self._contents = list[Content]()
        blocks = size // self._block
        streams = [(stream.dtype, blocks * len(stream.elements)) for stream in self._streams]
        if self._peaks:
            rest = self._peaks.rest_size(blocks)
            streams[-1:] = [("U8", blocks * self._peaks.number), (self._streams[-1].dtype, rest)]
        for (kind, raw), length in zip(streams, lengths, strict=True):
            section = Section(payload, end, length)
            scales = self._contents[0] if dtype == _SCALED and kind == "I8" else None
            self._contents.append(section if length == raw else reader(section, kind, raw, scales))
            end += length + -length % 8

    def _decode(self, first: int, last: int, out: Array) -> None:
        out[:] = 0
        most = 1 if self._ordered else WINDOW // _BLOCKS
        for begin in range(first, last, most):
            place = (begin - first) * self.step
            self._decode_blocks(begin * self._at_once, out[place : place + most * self.step])

    def _decode_blocks(self, first: int, out: Array) -> None:
        """Decode blocks from `first` on; `out` is full of zeros."""
        count, words = out.size // self._block, list[Array]()
        for number, stream in enumerate(self._streams):
            per_block = len(stream.elements)
            values = thread_buffer("elements of blocks", count * per_block)
            if self._peaks and number == len(self._streams) - 1:
                self._merge_peaks(first, values)
            else:
                self._contents[number].fill(first * per_block, values)
            if stream.dtype == "U16":
                values.view(np.uint16)[:] += words[0] & _COARSE
            if number < len(self._streams) - 1:
                words.append(values.view(np.uint16 if stream.dtype in ("F16", "U16") else np.uint8).copy())
            elif self._ordered:
                order = order_of(self._dtype, words)
                codes = values.reshape(order.places.size, -1)
                order.flip(codes)
                values = thread_buffer("codes of blocks", values.size)
                values.reshape(codes.shape)[order.places] = codes
            _put(values, stream, self._block, out)

    def _merge_peaks(self, first: int, codes: Array) -> None:
        """Fill `codes` with those of blocks from `first` on, of which there is an even number unless they end."""
        peaks = self._peaks
        assert peaks is not None
        count = codes.size // peaks.width
        places = thread_buffer("places of peaks", count * peaks.number)
        rest = thread_buffer("codes without peaks", peaks.rest_size(count))
        self._contents[-2].fill(first * peaks.number, places)
        self._contents[-1].fill(peaks.rest_size(first), rest)
        peaks.merge(places, rest, codes)


def _head(payload: Content, dtype: str, streams: int) -> tuple[bool, list[int]]:
    """Return whether codes are in order, and the lengths of the sections. Raises DamagedError."""
    start = np.empty(_HEAD, np.uint8)
    if payload.size < _HEAD:
        raise damaged("its blocks are cut off")
    payload.fill(0, start)
    form, flags = start.view(np.uint32).tolist()
    if form != FORMAT or flags & 1 > has_order(dtype) or flags >> 1 > (dtype in PEAKS):
        raise damaged("its coding is unknown")
    lengths = np.empty(8 * (streams + (flags >> 1)), np.uint8)
    if payload.size < _HEAD + lengths.size:
        raise damaged("its blocks are cut off")
    payload.fill(_HEAD, lengths)
    return bool(flags & 1), lengths.view(np.uint64).tolist()
