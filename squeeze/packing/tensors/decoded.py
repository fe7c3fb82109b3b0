"""The bytes of a coded tensor, decoded a few segments at a time out of a payload that may lie in a file.

Of the payload only what says where segments are is kept. A run of segments is put together as a small payload of its
own, and decoded as any other.
"""

from dataclasses import replace

import numpy as np

from squeeze.errors import DamagedError
from squeeze.packing.tensors import fixed, floats, plane_fields as columns
from squeeze.packing.tensors.content import PART, Content
from squeeze.packing.tensors.float_payload import DTYPES, HEAD, LAYOUTS, PLANE, WORDS, Array, Coded, parse, raw_size
from squeeze.packing.tensors.float_writer import aligned
from squeeze.packing.tensors.tables import damaged
from squeeze.system.arena import kept

__all__ = ["Decoded", "DecodedFixed", "InSegments"]

_MOST_LANES = 6  # log2
_KEPT = (columns.IDS, columns.COUNTS)  # sections that are kept in memory


class InSegments:
    """Content of `size` bytes in segments of `step`, of which some are decoded at a time."""

    size: int
    step: int
    room = "decoded"  # name of the memory for segments that are wanted in part

    def fill(self, begin: int, out: Array) -> None:
        most, end = max(PART // self.step, 1) * self.step, begin + out.size
        for start in range(begin // self.step * self.step, end, most):
            stop = min(start + most, -(-end // self.step) * self.step, self.size)
            first, last = start // self.step, -(-stop // self.step)
            if start >= begin and stop <= end:
                self._decode(first, last, out[start - begin : stop - begin])
                continue
            data = kept(self.room, stop - start)
            self._decode(first, last, data)
            inside = slice(max(start, begin), min(stop, end))
            out[inside.start - begin : inside.stop - begin] = data[inside.start - start : inside.stop - start]

    def _decode(self, first: int, last: int, out: Array) -> None:
        raise NotImplementedError


class Decoded(InSegments):
    """What a payload of floats.py stands for. Raises DamagedError where that contradicts itself."""

    def __init__(self, payload: Content, dtype: str, size: int):
        self._payload, self.size = payload, size
        self._coded = parse(_index_of(payload, dtype, size), dtype, size)
        self._slots = self._coded.slots()
        self.step = self._coded.lanes * self._coded.rows * self._coded.bits // 8
        self._starts = [self._starts_of(plane) for plane in self._coded.fields.tolist()]

    def _starts_of(self, plane: list[int]) -> Array:
        """Where the words of each segment begin, among those of a plane."""
        size = 4 * self._coded.segments if plane[columns.PRECISION] else 0
        counts = self._coded.payload[plane[columns.COUNTS] :][:size].view(np.uint32)
        return np.append(np.int64(0), np.cumsum(counts, dtype=np.int64))

    def _decode(self, first: int, last: int, out: Array) -> None:
        part = self._part(first, last)
        try:
            floats.decode_with(part, self._slots, out.view(WORDS[part.bits]))
        except DamagedError:
            raise damaged(f"one of segments {first} to {last - 1} does not decode") from None

    def _part(self, first: int, last: int) -> Coded:
        """A payload of these segments alone."""
        whole, sections, end = self._coded, list[tuple[int, int, int, int]](), 0  # column, place here and there, bytes
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
                end = aligned(end + 2 * whole.lanes)  # which a decoder may read ahead
            take(row, columns.RAW, 4 * raw_size(begin, *size, raw_bits), 4 * raw_size(count, *size, raw_bits))
        part = kept("part", -(-end // 8) * 8 + 8 * whole.lanes)
        for column, here, there, length in sections:
            if column in _KEPT:
                part[here : here + length] = whole.payload[there : there + length]
            else:
                self._payload.fill(there, part[here : here + length])
        return replace(whole, payload=part, count=count, fields=fields)


def _index_of(payload: Content, dtype: str, size: int) -> Array:
    """As many bytes as a payload has, of which only those are there that `parse` looks at. Others take no memory."""
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


class DecodedFixed(InSegments):
    """What a payload of fixed.py stands for. Raises DamagedError where that contradicts itself."""

    def __init__(self, payload: Content, dtype: str, size: int):
        self._payload, self.size = payload, size
        index = np.zeros(payload.size, np.uint8)
        known = min(fixed.directory_size(dtype, size), payload.size)
        payload.fill(0, index[:known])
        self._coded = fixed.parse(index, dtype, size)
        self.step = self._coded.lanes * self._coded.rows * self._coded.bits // 8

    def _decode(self, first: int, last: int, out: Array) -> None:
        begin, end = int(self._coded.starts[first]), int(self._coded.starts[last])
        part = kept("part", end - begin)
        self._payload.fill(begin, part)
        fixed.decode_part(self._coded, part, first, last, out)
