"""The plan by which floats.py codes a tensor (planes and their models), and writing its payload.

In a payload, words precede raw bits, and the number of words is known only when all are coded. So a tensor is read once
for its models, once for the words of each plane, and once for the last raw bits. Each pass does everything whose place
is known.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from squeeze.packing.tensors import planes, rans
from squeeze.packing.tensors.content import Content, Parts
from squeeze.packing.tensors.float_layout import Choice, choose, sample_of
from squeeze.packing.tensors.float_models import Cut, PlaneModel
from squeeze.packing.tensors.float_payload import (
    DTYPES,
    FORMAT,
    HEAD,
    LAYOUTS,
    PLANE,
    WORDS,
    Array,
    geometry,
    raw_size,
)
from squeeze.packing.tensors.float_writer import Writer, aligned, most_bytes
from squeeze.packing.tensors.plane_reader import whole_size

__all__ = ["LEAST_VALUES", "Plan", "chosen", "geometry"]

LEAST_VALUES = 32  # smaller tensors are stored
_PADDING = np.zeros(4, np.uint8)
Job = Callable[[Array, int, int], None]  # called with values of segments first to last


def chosen(content: Content, dtype: str) -> Choice | None:
    """Return the layout of a tensor, or None if it has few values."""
    bits, rotated = DTYPES[dtype]
    count = 8 * content.size // bits
    if count < LEAST_VALUES:
        return None
    return choose(sample_of(content, WORDS[bits]), count, bits, rotated, *geometry(count, dtype))


@dataclass(frozen=True)
class _Plane:
    """A plane and its model, or None if all its bits are raw."""

    cut: Cut
    model: PlaneModel | None

    @property
    def raw_bits(self) -> int:
        return self.cut.width - self.model.prefix_bits if self.model else self.cut.width


@dataclass(frozen=True)
class Plan:
    """The layout, segments and models with which a tensor is coded."""

    parts: Parts
    bits: int
    rotated: bool
    layout: int
    lanes: int
    rows: int
    planes: tuple[_Plane, ...]

    @classmethod
    def of(cls, content: Content, dtype: str, threads: int) -> "Plan | None":
        """Plan the coding of a tensor; return None if coding does not make it shorter."""
        choice = chosen(content, dtype)
        if choice is None or choice.cost >= 8 * content.size:
            return None
        bits, rotated = DTYPES[dtype]
        lanes, rows = geometry(8 * content.size // bits, dtype)
        parts, drop, found = Parts(content, WORDS[bits], lanes * rows, threads), bits, []
        for number, (width, prefix) in enumerate(zip(LAYOUTS[choice.layout], choice.prefixes, strict=True)):
            drop -= width
            cut = Cut(bits, bits if rotated else 0, drop, width)
            counts = choice.counts[number] if choice.counts else None
            found.append(_Plane(cut, PlaneModel.build(parts, cut, prefix, counts) if prefix else None))
        return cls(parts, bits, rotated, choice.layout, lanes, rows, tuple(found))

    @property
    def count(self) -> int:
        """The number of values."""
        return self.parts.count

    @property
    def most_zeros(self) -> int:
        """An upper bound of the values that are 0."""
        return min((plane.model.lowest for plane in self.planes if plane.model), default=self.parts.count)

    def write(self, writer: Writer) -> int:
        """Write the payload; return its bytes."""
        widths, count, pending = LAYOUTS[self.layout], self.parts.count, list[Job]()
        writer.reserve(most_bytes(count, widths, self.lanes, self.rows))
        directory = [HEAD.pack(FORMAT, self.layout, self.rotated, self.lanes.bit_length() - 1, self.rows, count)]
        place, words_end = HEAD.size + len(widths) * PLANE.size, 0
        for plane in self.planes:
            model, cut = plane.model, plane.cut
            if model is None:
                directory.append(PLANE.pack(cut.width, cut.width, 0, 0, 0, 0))
                pending.append(self._cutting(writer, plane, place))
                place = _zeros(writer, place + count * cut.width // 8)
                continue
            place, words = _put(writer, place, np.frombuffer(model.text, np.uint8)), 0
            tables = len(model.frequencies) if model.precision else 0
            if model.precision:
                if tables > 1:
                    place = _put(writer, place, model.ids)
                place, words = self._write_words(writer, plane, model, place, pending)
                words_end, pending = place, []
            if plane.raw_bits:
                pending.append(self._packing(writer, plane, place))
                place += 4 * raw_size(count, self.lanes, self.rows, plane.raw_bits)
            directory.append(PLANE.pack(cut.width, plane.raw_bits, model.precision, tables, len(model.text), words))
        self._run(pending)
        size = int(whole_size(place, words_end, self.lanes))
        writer.put(place, np.zeros(size - place, np.uint8))
        writer.put(0, np.frombuffer(b"".join(directory), np.uint8))
        return size

    def _run(self, jobs: list[Job]) -> None:
        def work(values: Array, first: int, last: int) -> None:
            for job in jobs:
                job(values, first, last)

        for _ in self.parts.map(work) if jobs else ():
            pass

    def _cutting(self, writer: Writer, plane: _Plane, place: int) -> Job:
        cut, kind = plane.cut, WORDS[plane.cut.width]

        def work(values: Array, first: int, last: int) -> None:
            begin = place + first * self.parts.per_segment * cut.width // 8
            section = writer.room(begin, values.size, kind)
            planes.cut_plane(values, cut.rotate, cut.drop, section)
            if not writer.in_place:
                writer.put(begin, section)

        return work

    def _packing(self, writer: Writer, plane: _Plane, place: int) -> Job:
        raw_bits, size = plane.raw_bits, (self.lanes, self.rows)

        def work(values: Array, first: int, last: int) -> None:
            begin = place + 4 * raw_size(first * self.parts.per_segment, *size, raw_bits)
            section = writer.room(begin, raw_size(values.size, *size, raw_bits), np.uint32)
            planes.pack_raw(*plane.cut.of(values), raw_bits, 0, last - first, *size, section)
            if not writer.in_place:
                writer.put(begin, section)

        return work

    def _write_words(
        self, writer: Writer, plane: _Plane, model: PlaneModel, place: int, pending: list[Job]
    ) -> tuple[int, int]:
        """Write word counts, states and words of a plane, and do the pending jobs in the same pass.

        Args:
            writer: where the payload goes.
            plane: the plane.
            model: its model.
            place: where its section begins.
            pending: jobs whose places are known.

        Returns where the next section begins, and the number of words.
        """
        per_segment, bits = self.parts.per_segment, model.prefix_bits
        counts, states = np.empty(model.ids.size, np.uint32), np.empty(model.ids.size * self.lanes, np.uint32)
        table = np.zeros((len(model.frequencies), 1 << bits), np.uint32)
        for row, frequencies in zip(table, model.frequencies, strict=True):
            rans.encoding_table(frequencies, model.prefixes, row)
        flat, words_at = table.reshape(-1), place + counts.nbytes + states.nbytes

        def work(values: Array, first: int, last: int) -> tuple[int, Array]:
            for job in pending:
                job(values, first, last)
            begin = words_at + 2 * first * per_segment
            words = writer.room(begin, values.size, np.uint16)
            scratch, state = np.empty(per_segment + rans.SLACK, np.uint16), np.empty(rans.MAX_LANES, np.uint32)
            written = rans.encode_segments(
                *(*plane.cut.of(values), plane.raw_bits, bits, 0, last - first, self.lanes, self.rows),
                *(model.precision, flat, model.ids[first:last], words, counts[first:last]),
                *(states[first * self.lanes : last * self.lanes],),
                *(scratch, state, np.empty(3, np.int64)),
            )
            return begin, words[:written]

        end = words_at
        for begin, words in self.parts.map(work):
            if begin != end or not writer.in_place:  # close the gap to the part before
                writer.put(end, words)
            end += words.nbytes
        writer.put(place, counts)
        writer.put(place + counts.nbytes, states)
        return _zeros(writer, end), (end - words_at) // 2


def _put(writer: Writer, place: int, section: Array) -> int:
    """Write a section; return where the next one begins."""
    writer.put(place, section)
    return _zeros(writer, place + section.nbytes)


def _zeros(writer: Writer, place: int) -> int:
    """Pad with zeros; return where the next section begins."""
    if place % 4:
        writer.put(place, _PADDING[: -place % 4])
    return aligned(place)
