"""Lossless coding of tensors: bf16, fp16, fp32, fp64, fp8 and integers, with every bit pattern kept.

A float is rotated left by one bit, so that its exponent and the first mantissa bits lead and the sign trails, and cut
into *planes* (often one). The *prefix* of a value in a plane is its leading bits. Prefixes are coded by rANS (rans.py)
with up to MAX_TABLES frequency tables a tensor; the bits after them, which are noise, stay raw. The number of prefix
bits is measured on a sample. A plane in which nothing gets shorter is raw, such a tensor is stored.

`encode` and `decode` convert one tensor's bytes to a payload and back, and `Decoded` decodes some segments at a time.
The bytes are specified by float_payload.py, the encoder's choices are float_plan.py's. Names, shapes and checksums
belong to the container (squeeze/packing).
"""

from dataclasses import replace

import numpy as np

from squeeze.errors import DamagedError
from squeeze.packing.tensors import plane as columns, planes, rans, small
from squeeze.packing.tensors.content import Content, InMemory, InSegments
from squeeze.packing.tensors.float_payload import (
    CHOICES,
    DTYPES,
    HEAD,
    LAYOUTS,
    PLANE,
    WORDS,
    Array,
    Coded,
    geometry,
    parse,
    raw_size,
)
from squeeze.packing.tensors.float_plan import chosen
from squeeze.packing.tensors.float_writer import Writer, aligned, in_memory, most_bytes
from squeeze.packing.tensors.tables import damaged
from squeeze.system.arena import allocate, thread_buffer
from squeeze.system.parallel import parallel_ranges

__all__ = ["Decoded", "decode", "decode_segments", "decode_with", "encode", "estimate", "max_size", "write"]

_MOST_LANES = 6  # log2
_KEPT = (columns.IDS, columns.COUNTS)  # sections that are kept in memory


def encode(data: Array, dtype: str, threads: int = 1, columns: int = 0) -> Array | None:
    """Return the payload (uint8, a multiple of 8 bytes) of a tensor's little-endian bytes, or None if it is no shorter.

    Args:
        data: the bytes, uint8.
        dtype: safetensors' name of the type, a key of DTYPES.
        threads: threads that code segments.
        columns: ignored; for the interface of other coders.
    """
    return in_memory(lambda writer: write(InMemory(data), dtype, writer, threads))


def write(content: Content, dtype: str, writer: Writer, threads: int = 1, columns: int = 0) -> int:
    """Write the payload of a tensor; return its bytes, or 0 if it is no shorter. Args are as in `encode`."""
    plan = small.plan_of(content, dtype, threads)
    size = plan.write(writer) if plan else 0
    return size if size < content.size else 0


def max_size(size: int, dtype: str) -> int:
    """Return an upper bound of the bytes of a payload for `size` bytes."""
    bits, rotated = DTYPES[dtype]
    count = 8 * size // bits
    return max(most_bytes(count, LAYOUTS[layout], *geometry(count, dtype)) for layout in CHOICES[bits, rotated])


def estimate(content: Array | Content, dtype: str) -> float:
    """Estimate the bits of the payload of a tensor's bytes."""
    if isinstance(content, np.ndarray):
        content = InMemory(content)
    choice = chosen(content, dtype)
    return min(choice.cost, 8.0 * content.size) if choice else 8.0 * content.size


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
    if out is None and size <= small.MOST:
        out = allocate(size)
    if out is not None and small.decode(payload, dtype, out, threads):
        return out
    coded = parse(payload, dtype, size)
    if out is None:
        out = allocate(size)
    decode_segments(coded, 0, coded.segments, out.view(WORDS[coded.bits]), threads)
    return out


def decode_segments(coded: Coded, first: int, last: int, out: Array, threads: int = 1) -> None:
    """Decode segments first to last into `out`, their values. Raises DamagedError."""
    per_segment, slots = coded.lanes * coded.rows, coded.slots()

    def work(begin: int, end: int) -> None:
        _decode(coded, slots, first + begin, first + end, out[begin * per_segment : end * per_segment])

    parallel_ranges(work, last - first, threads)


def decode_with(coded: Coded, slots: Array, out: Array) -> None:
    """Decode all segments into `out`, their values, with tables from `coded.slots`. Raises DamagedError."""
    _decode(coded, slots, 0, coded.segments, out)


def _decode(coded: Coded, slots: Array, first: int, last: int, out: Array) -> None:
    per_segment = coded.lanes * coded.rows
    step = max(last - first, 1) if len(coded.fields) == 1 else max(planes.TOGETHER // per_segment, 1)
    if coded.bits <= 32:
        _decode_planes(coded, coded.fields, slots, coded.bits, coded.rotated, range(first, last, step), out)
        return
    for segment in range(first, last, step):  # planes of 64-bit values are decoded one by one
        end, drop = min(segment + step, last), coded.bits
        piece = out[(segment - first) * per_segment : (end - first) * per_segment]
        for number, width in enumerate(coded.fields[:, columns.WIDTH].tolist()):
            drop -= width
            values = np.empty(piece.size, WORDS[width])
            fields, segments = coded.fields[number : number + 1], range(segment, end, step)
            _decode_planes(coded, fields, slots, width, False, segments, values)
            rotate = coded.bits if coded.rotated and drop == 0 else 0
            planes.put_plane(piece, rotate, drop, number > 0, values, 0)


def _decode_planes(
    coded: Coded, fields: Array, slots: Array, bits: int, rotated: bool, segments: range, out: Array
) -> None:
    """Decode planes that are `bits` wide together; segments.step are decoded at a time."""
    payload = coded.payload
    bad = planes.decode_planes(
        *(
            out,
            bits,
            rotated,
            segments.start,
            segments.stop,
            segments.step,
            coded.count,
            coded.lanes,
            coded.rows,
            fields,
            slots,
            payload,
        ),
        *(payload.view(np.uint16), payload.view(np.uint32), np.empty(2 * rans.MAX_LANES, np.uint32)),
        *(np.empty((2, 5), np.int64), np.empty(len(fields), np.int64)),
    )
    if bad >= 0:
        raise damaged(f"segment {bad} does not decode")


class Decoded(InSegments):
    """A content that decodes a payload a few segments at a time. Raises DamagedError if it contradicts itself.

    The payload may lie in a file. Only its index of segments is kept; a range of segments is assembled to a small
    payload and decoded as any other.
    """

    def __init__(self, payload: Content, dtype: str, size: int):
        self._payload, self.size = payload, size
        self._coded = parse(_index_of(payload, dtype, size), dtype, size)
        self._slots = self._coded.slots()
        self.step = self._coded.lanes * self._coded.rows * self._coded.bits // 8
        self._starts = [self._starts_of(plane) for plane in self._coded.fields.tolist()]

    def _starts_of(self, plane: list[int]) -> Array:
        """Return where the words of each segment begin, among those of a plane."""
        size = 4 * self._coded.segments if plane[columns.PRECISION] else 0
        counts = self._coded.payload[plane[columns.COUNTS] :][:size].view(np.uint32)
        return np.append(np.int64(0), np.cumsum(counts, dtype=np.int64))

    def _decode(self, first: int, last: int, out: Array) -> None:
        part = self._part(first, last)
        try:
            decode_with(part, self._slots, out.view(WORDS[part.bits]))
        except DamagedError:
            raise damaged(f"one of segments {first} to {last - 1} does not decode") from None

    def _part(self, first: int, last: int) -> Coded:
        """Return a payload of these segments alone."""
        whole, sections, end = self._coded, list[tuple[int, int, int, int]](), 0  # column, places, bytes
        fields, size = whole.fields.copy(), (whole.lanes, whole.rows)
        begin = first * whole.lanes * whole.rows
        count = min(last * whole.lanes * whole.rows, whole.count) - begin

        def take(row: Array, column: int, skipped: int, length: int) -> None:
            nonlocal end
            sections.append((column, end, int(row[column]) + skipped, length))
            row[column], end = end, aligned(end + length)

        for row, starts in zip(fields, self._starts, strict=True):
            width, raw_bits = int(row[columns.WIDTH]), int(row[columns.RAW_BITS])
            if raw_bits == width:
                take(row, columns.RAW, begin * width // 8, count * width // 8)
                continue
            if row[columns.PRECISION]:
                if row[columns.TABLES] > 1:
                    take(row, columns.IDS, first, last - first)
                take(row, columns.COUNTS, 4 * first, 4 * (last - first))
                take(row, columns.STATES, 4 * first * whole.lanes, 4 * (last - first) * whole.lanes)
                take(row, columns.WORDS_AT, 2 * int(starts[first]), 2 * int(starts[last] - starts[first]))
                end = aligned(end + 2 * whole.lanes)  # a decoder may read ahead
            take(row, columns.RAW, 4 * raw_size(begin, *size, raw_bits), 4 * raw_size(count, *size, raw_bits))
        part = thread_buffer("part", -(-end // 8) * 8 + 8 * whole.lanes)
        for column, here, there, length in sections:
            if column in _KEPT:
                part[here : here + length] = whole.payload[there : there + length]
            else:
                self._payload.fill(there, part[here : here + length])
        return replace(whole, payload=part, count=count, fields=fields)


def _index_of(payload: Content, dtype: str, size: int) -> Array:
    """Return an array of the payload's size in which only the bytes that `parse` reads are filled.

    Untouched pages take no memory.
    """
    index, place = np.zeros(payload.size, np.uint8), 0

    def load(length: int) -> Array:
        nonlocal place
        begin, place = place, min(place + length, payload.size)
        payload.fill(begin, index[begin:place])
        return index[begin:place]

    def skip(length: int) -> None:
        nonlocal place
        place = min(aligned(place + length), payload.size)

    head = load(HEAD.size)
    if head.size < HEAD.size:
        return index
    _, layout, _, log_lanes, rows, count = HEAD.unpack(head.tobytes())
    if layout >= len(LAYOUTS) or log_lanes > _MOST_LANES or not rows or count != 8 * size // DTYPES[dtype][0]:
        return index
    lanes, planes = 1 << log_lanes, len(LAYOUTS[layout])
    directory = load(planes * PLANE.size).tobytes()
    segments, directory = -(-count // (lanes * rows)), directory.ljust(planes * PLANE.size, b"\0")
    for width, raw_bits, precision, tables, text, words in PLANE.iter_unpack(directory):
        if raw_bits == width:
            skip(count * width // 8)
            continue
        load(text)
        skip(0)
        if precision:
            if tables > 1:
                load(segments)
                skip(0)
            load(4 * segments)
            skip(4 * segments * lanes)
            skip(2 * words)
        skip(4 * raw_size(count, lanes, rows, raw_bits))
    return index
