"""The archive coding of floats: context mixing of exponents and leading mantissa bits. Smallest, slow, CPU only.

A tensor is a matrix of `columns`. Each exponent is coded as decisions from the one that running means of row and column
lead to expect; the first `mixed` mantissa bits follow (archive_models.py). The remaining bits, mostly noise, are coded
by floats.py. A tensor that is not a float, or does not get shorter, is coded by floats.py as a whole.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

import numpy as np

from squeeze.numerics.bitmodels import coder as arithmetic
from squeeze.packing.tensors import floats
from squeeze.packing.tensors.archive_models import code
from squeeze.packing.tensors.archive_payload import (
    AT_ONCE,
    FORMAT,
    FORMS,
    HEAD,
    MAX_COLUMNS,
    MAX_MIXED,
    MIXED,
    WHOLE,
    WIDENED,
    BitSplit,
    Factors,
    model_of,
    segments,
    tops,
)
from squeeze.packing.tensors.content import PART, Content, InMemory, Section, bytes_of, in_parts, whole
from squeeze.packing.tensors.float_payload import DTYPES, WORDS, Array
from squeeze.packing.tensors.float_writer import Behind, Writer, copy, in_memory
from squeeze.packing.tensors.floats import Decoded
from squeeze.packing.tensors.tables import damaged
from squeeze.system.arena import allocate, thread_buffer

__all__ = ["DecodedArchive", "Segments", "decode", "decoded", "encode", "write"]

_SMALL = 1 << 16  # bytes: smaller tensors are also coded by floats.py


class _Unmixed:
    """A content with the bits of another content's values that are not mixed."""

    def __init__(self, content: Content, cut: BitSplit):
        self._content, self._cut = content, cut
        self.size = 8 * content.size // cut.bits * cut.width

    def fill(self, begin: int, out: Array) -> None:
        first, found = begin // self._cut.width, out.view(WORDS[8 * self._cut.width])
        rotated = self._cut.rotated(self._content, first, first + found.size)
        np.bitwise_and(rotated, rotated.dtype.type((1 << self._cut.unmixed_bits) - 1), out=found, casting="unsafe")


class _AsHalves:
    """A content with the numbers of another one, int8, as float16."""

    def __init__(self, content: Content):
        self._content, self.size = content, 2 * content.size

    def fill(self, begin: int, out: Array) -> None:
        first, end = begin // 2, -(-(begin + out.size) // 2)
        halves = bytes_of(self._content, first, end).view(np.int8).astype(np.float16).view(np.uint8)
        out[:] = halves[begin - 2 * first :][: out.size]


class _OfHalves:
    """A content with the numbers of another one, float16, as int8. Raises DamagedError if any is no such number."""

    def __init__(self, content: Content):
        self._content, self.size = content, content.size // 2

    def fill(self, begin: int, out: Array) -> None:
        halves = np.empty(2 * out.size, np.uint8)
        self._content.fill(2 * begin, halves)
        values = halves.view(np.float16)
        if not (np.abs(values) <= 128).all():
            raise damaged("a value is not an integer of 8 bits")
        np.copyto(out.view(np.int8), values, casting="unsafe")


def encode(data: Array, dtype: str, threads: int = 1, columns: int = 0) -> Array | None:
    """Return the payload of a tensor's bytes, or None if it is no shorter.

    Args:
        data: the bytes, uint8.
        dtype: safetensors' name of the type.
        threads: threads that code segments.
        columns: values in a row, 0 if unknown.
    """
    return in_memory(lambda writer: write(InMemory(data), dtype, writer, threads, columns))


def write(
    content: Content, dtype: str, writer: Writer, threads: int = 1, columns: int = 0, scales: Content | None = None
) -> int:
    """Write the payload of a tensor; return its bytes, or 0 if it is no shorter.

    Args are as in `encode`, and scales: of I8, a float16 for as many values each, by which these are multiplied.
    """
    if not content.size:
        return 0
    if dtype == "I8":
        size = _write_mixed(_AsHalves(content), "F16", writer, threads, columns, scales, WIDENED)
        if 0 < size < content.size:
            return size
    if dtype not in FORMS:
        writer.reserve(HEAD.size + floats.max_size(content.size, dtype))
        size = _with_head(writer, floats.write(content, dtype, Behind(writer, HEAD.size), threads))
        return size if size < content.size else 0
    size = _write_mixed(content, dtype, writer, threads, columns)
    if content.size < _SMALL:
        other = floats.encode(whole(content), dtype, threads)
        if other is not None and (not size or other.size + HEAD.size <= size):
            writer.reserve(HEAD.size + other.size)
            writer.put(HEAD.size, other)
            size = _with_head(writer, other.size)
    return size if size < content.size else 0


def _with_head(writer: Writer, size: int) -> int:
    """Write the header before a payload of floats.py of `size` bytes; return the size of both."""
    if not size:
        return 0
    writer.put(0, np.frombuffer(HEAD.pack(FORMAT, WHOLE, 0, 0, 0, 0, size), np.uint8))
    return HEAD.size + size


def _write_mixed(
    content: Content,
    dtype: str,
    writer: Writer,
    threads: int,
    columns: int,
    scales: Content | None = None,
    mode: int = MIXED,
) -> int:
    """Write a mixed payload; return its bytes, or 0 if a segment takes over four bytes a value."""
    cut, rest = _choose_split(content, dtype)
    count = 8 * content.size // cut.bits
    columns = min(columns or 1 << 16, count, MAX_COLUMNS)
    middle, spans = _middle(content, cut, threads), list(segments(count, columns))
    factors = Factors.of(scales, count)
    writer.reserve(HEAD.size + floats.max_size(rest.size, cut.dtype) + 4 * count + 2048 * len(spans))
    inner = Behind(writer, HEAD.size)
    size = floats.write(rest, cut.dtype, inner, threads) or copy(rest, inner, 0, threads)
    lengths_at = HEAD.size + size
    lengths, end = np.zeros(len(spans), np.uint32), lengths_at + 4 * len(spans)

    def work(number: int, last: int) -> Array:
        tops = cut.top(content, *spans[number])
        return _encoded(tops, cut, columns, middle, factors.between(*spans[number]))

    for number, stream in enumerate(in_parts(work, len(spans), 1, threads)):
        if not stream.size:
            return 0
        writer.put(end, stream)
        lengths[number], end = stream.size, end + stream.size
    writer.put(0, np.frombuffer(HEAD.pack(FORMAT, mode, cut.mixed, middle, columns, count, size), np.uint8))
    writer.put(lengths_at, lengths)
    return end


def _choose_split(content: Content, dtype: str) -> tuple[BitSplit, _Unmixed]:
    """Return the cut that mixes all mantissa bits that are not noise, and the rest."""
    bits, (exponent, mantissa) = DTYPES[dtype][0], FORMS[dtype]
    most = min(MAX_MIXED, mantissa)
    cut = BitSplit(bits, exponent, min(3, mantissa))
    rest = _Unmixed(content, cut)
    if cut.mixed < most and floats.estimate(rest, cut.dtype) <= 0.995 * cut.unmixed_bits * (rest.size // cut.width):
        cut = BitSplit(bits, exponent, most)
    return cut, _Unmixed(content, cut)


def _middle(content: Content, cut: BitSplit, threads: int) -> int:
    """Return the most frequent exponent."""

    def work(first: int, last: int) -> Array:
        rotated = cut.rotated(content, first, last)
        shift = rotated.dtype.type(cut.bits - cut.exponent)
        return np.bincount((rotated >> shift).astype(np.uint8), minlength=1 << cut.exponent)

    counts = np.zeros(1 << cut.exponent, np.int64)
    for found in in_parts(work, 8 * content.size // cut.bits, AT_ONCE, threads):
        counts += found
    return int(counts.argmax())


def _encoded(values: Array, cut: BitSplit, columns: int, middle: int, factors: tuple[Array, int, int]) -> Array:
    """Return the code of a segment, uint8; empty if it is longer than allowed."""
    model, top = model_of(cut, values, columns, middle), (1 << cut.exponent) - 1
    coder, coded = np.zeros(3, np.uint64), thread_buffer("codes of archive", 4 * values.size + 1024)
    arithmetic.start_encoder(coder)
    end = code(model, values, cut.mixed, middle, top, *factors, coder, coded, False)
    size = arithmetic.finish_encoder(coder, coded) if end == values.size else 0
    return coded[:size].copy()


def decode(payload: Array, dtype: str, size: int, threads: int = 1, out: Array | None = None) -> Array:
    """Decode a payload to `size` bytes.

    Args:
        payload: uint8.
        dtype: safetensors' name of the type.
        size: bytes of the tensor.
        threads: threads that decode segments.
        out: uint8 array for the result, or None.

    Raises DamagedError.
    """
    content, found = decoded(InMemory(payload), dtype, size, threads), allocate(size) if out is None else out
    if not isinstance(content, DecodedArchive):
        for _ in in_parts(lambda begin, end: content.fill(begin, found[begin:end]), size, PART, threads):
            pass
        return found
    parts = content.segments

    def work(number: int, last: int) -> None:
        begin, end = parts.spans[number]
        parts.decode(number, found[begin * parts.width : end * parts.width])

    for _ in in_parts(work, len(parts.spans), 1, threads):
        pass
    return found


def decoded(payload: Content, dtype: str, size: int, threads: int = 1, scales: Content | None = None) -> Content:
    """Return a content that decodes a payload as it is read; scales are as in `write`.

    Raises DamagedError if the payload contradicts itself.
    """
    if payload.size < HEAD.size:
        raise damaged("its length is invalid")
    head = np.empty(HEAD.size, np.uint8)
    payload.fill(0, head)
    form, mode, mixed, middle, columns, count, rest_size = HEAD.unpack(head.tobytes())
    left = payload.size - HEAD.size
    if form != FORMAT or mode > WIDENED or (mode == WIDENED) > (dtype == "I8") or rest_size > left:
        raise damaged("its coding is unknown")
    if mode == WHOLE:
        if rest_size != left:
            raise damaged("its length is not that of its parts")
        return Decoded(Section(payload, HEAD.size, rest_size), dtype, size)
    if mode == WIDENED:
        dtype, size = "F16", 2 * size
    exponent, mantissa = FORMS.get(dtype, (0, -1))
    if not 0 <= mixed <= min(mantissa, MAX_MIXED) or not 1 <= columns <= MAX_COLUMNS or middle >> exponent:
        raise damaged("its coding is unknown")
    if count != size // (DTYPES[dtype][0] // 8) or count < 1:
        raise damaged("its size is not that of the tensor")
    cut, spans = BitSplit(DTYPES[dtype][0], exponent, mixed), list(segments(count, columns))
    rest = _unmixed_content(Section(payload, HEAD.size, rest_size), cut, count)
    start = HEAD.size + rest_size
    streams = Section(payload, start, payload.size - start)
    found = DecodedArchive(Segments.of(streams, rest, cut, middle, columns, spans, Factors.of(scales, count)), threads)
    return _OfHalves(found) if mode == WIDENED else found


def _unmixed_content(section: Content, cut: BitSplit, count: int) -> Content:
    size = count * cut.width
    return section if section.size == size else Decoded(section, cut.dtype, size)


@dataclass(frozen=True)
class Segments:
    """The segments of a payload.

    streams: the codes, each from its place on. unmixed: the bits that are not mixed. spans: the first value of each
    segment and the one after its last.
    """

    streams: Content
    unmixed: Content
    split: BitSplit
    middle: int
    columns: int
    spans: list[tuple[int, int]]
    factors: Factors
    places: list[int]

    @classmethod
    def of(
        cls,
        streams: Content,
        rest: Content,
        cut: BitSplit,
        middle: int,
        columns: int,
        spans: list[tuple[int, int]],
        factors: Factors,
    ) -> "Segments":
        """Parse the lengths before the streams. Raises DamagedError if these do not add up."""
        lengths = np.zeros(4 * len(spans), np.uint8)
        streams.fill(0, lengths[: streams.size])
        ends = lengths.size + np.cumsum(lengths.view(np.uint32), dtype=np.int64)
        if ends[-1] != streams.size:
            raise damaged("its length is not that of its parts")
        return cls(streams, rest, cut, middle, columns, spans, factors, [lengths.size, *ends.tolist()])

    @property
    def width(self) -> int:
        """The bytes of a value."""
        return self.split.bits // 8

    def decoded(self, number: int) -> Array:
        """Return the bytes of a segment."""
        begin, end = self.spans[number]
        out = np.empty((end - begin) * self.width, np.uint8)
        self.decode(number, out)
        return out

    def decode(self, number: int, out: Array) -> None:
        """Decode a segment into `out`, uint8. Raises DamagedError."""
        cut, begin = self.split, self.spans[number][0]
        values, found = out.view(WORDS[cut.bits]), self._tops(number)
        one, last = values.dtype.type(1), values.dtype.type(cut.bits - 1)
        for first in range(0, values.size, AT_ONCE):
            part = values[first : first + AT_ONCE]
            low = thread_buffer("rest of archive", part.size * cut.width)
            self.unmixed.fill((begin + first) * cut.width, low)
            np.left_shift(
                found[first : first + part.size], cut.unmixed_bits, out=part, casting="unsafe", dtype=part.dtype
            )
            np.bitwise_or(part, low.view(WORDS[8 * cut.width]), out=part)
            np.bitwise_or(part >> one, part << last, out=part)

    def _tops(self, number: int) -> Array:
        """Decode exponents and mixed bits of a segment, uint16."""
        first, last = self.spans[number]
        coded = thread_buffer("codes of archive", self.places[number + 1] - self.places[number])
        self.streams.fill(self.places[number], coded)
        found = tops(last - first)
        found[:] = 0  # `code` reads the array
        model, top = model_of(self.split, found, self.columns, self.middle), (1 << self.split.exponent) - 1
        coder = np.zeros(3, np.uint64)
        arithmetic.start_decoder(coder, coded)
        factors = self.factors.between(first, last)
        end = code(model, found, self.split.mixed, self.middle, top, *factors, coder, coded, True)
        if end < found.size:
            raise damaged("its coded bytes end too early")
        return found


class DecodedArchive:
    """A content that decodes a payload when it is read, approximately in order."""

    def __init__(self, segments: Segments, threads: int):
        self.segments, self.size = segments, segments.spans[-1][1] * segments.width
        self._step = segments.spans[0][1] * segments.width
        self._ahead = _Ahead(segments.decoded, len(segments.spans), threads)

    def fill(self, begin: int, out: Array) -> None:
        place = 0
        while place < out.size:
            number, skipped = divmod(begin + place, self._step)
            part = self._ahead.get(number)[skipped:][: out.size - place]
            out[place : place + part.size] = part
            place += part.size


class _Ahead:
    """A cache that decodes segments ahead of the readers, each once if they are read approximately in order.

    work(number) decodes one of `count` segments, on `threads` threads. `threads` segments are kept, and one more.
    """

    def __init__(self, work: Callable[[int], Array], count: int, threads: int):
        self._work, self._count, self._threads = work, count, threads
        self._made: dict[int, Future[Array]] = {}
        self._lock, self._pool = Lock(), ThreadPoolExecutor(threads, thread_name_prefix="squeeze-ahead")

    def get(self, number: int) -> Array:
        """Return a segment, which must not be written to. Raises as `work` does."""
        with self._lock:
            wanted = range(max(number - 1, 0), min(number + self._threads, self._count))
            for other in [other for other in self._made if other not in wanted]:
                self._made.pop(other).cancel()
            for other in range(number, wanted.stop):
                if other not in self._made:
                    self._made[other] = self._pool.submit(self._work, other)
            found = self._made[number]
        return found.result()
