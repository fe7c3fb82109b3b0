"""The bytes of a tensor that floats_archive.py coded, decoded as they are read of a payload that may lie in a file."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

import numpy as np

from squeeze.numerics.bitmodels import coder as arithmetic
from squeeze.packing.tensors.archive_models import code
from squeeze.packing.tensors.archive_payload import (
    AT_ONCE,
    FORMAT,
    FORMS,
    HEAD,
    MAX_COLUMNS,
    MIXED,
    MOST_MIXED,
    WHOLE,
    Cut,
    model_of,
    segments,
    tops,
)
from squeeze.packing.tensors.archive_tree import Tree
from squeeze.packing.tensors.content import Content, Section
from squeeze.packing.tensors.decoded import Decoded
from squeeze.packing.tensors.float_payload import DTYPES, WORDS, Array
from squeeze.packing.tensors.tables import damaged
from squeeze.system.arena import kept

__all__ = ["DecodedArchive", "Segments", "decoded"]


def decoded(payload: Content, dtype: str, size: int, threads: int = 1) -> Content:
    """What a payload stands for, decoded as it is read. Raises DamagedError where that contradicts itself."""
    if payload.size < HEAD.size:
        raise damaged("its length is impossible")
    head = np.empty(HEAD.size, np.uint8)
    payload.fill(0, head)
    form, mode, mixed, _, columns, count, tree_size, rest_size = HEAD.unpack(head.tobytes())
    left = payload.size - HEAD.size
    if form != FORMAT or mode > MIXED or tree_size + rest_size > left:
        raise damaged("its coding is unknown")
    if mode == WHOLE:
        if tree_size + rest_size != left:
            raise damaged("its length is not that of its parts")
        return Decoded(Section(payload, HEAD.size + tree_size, rest_size), dtype, size)
    exponent, mantissa = FORMS.get(dtype, (0, -1))
    if not 0 <= mixed <= min(mantissa, MOST_MIXED) or not 1 <= columns <= MAX_COLUMNS:
        raise damaged("its coding is unknown")
    if count != size // (DTYPES[dtype][0] // 8) or count < 1:
        raise damaged("its size is not that of the tensor")
    text = np.empty(tree_size, np.uint8)
    payload.fill(HEAD.size, text)
    tree = Tree.parse(text.tobytes(), 1 << exponent)
    cut, spans = Cut(DTYPES[dtype][0], exponent, mixed), list(segments(count, columns))
    rest = _rest(Section(payload, HEAD.size + tree_size, rest_size), cut, count)
    start = HEAD.size + tree_size + rest_size
    streams = Section(payload, start, payload.size - start)
    return DecodedArchive(Segments.of(streams, rest, tree, cut, columns, spans), threads)


def _rest(section: Content, cut: Cut, count: int) -> Content:
    size = count * cut.width
    return section if section.size == size else Decoded(section, cut.dtype, size)


@dataclass(frozen=True)
class Segments:
    """The segments of a payload. streams: the codes of their tops, each from its place on; rest: what is behind those;
    spans: the first value of each, and the one after the last."""

    streams: Content
    rest: Content
    tree: Tree
    cut: Cut
    columns: int
    spans: list[tuple[int, int]]
    places: list[int]

    @classmethod
    def of(
        cls, streams: Content, rest: Content, tree: Tree, cut: Cut, columns: int, spans: list[tuple[int, int]]
    ) -> "Segments":
        """streams: with the lengths of all before them. Raises DamagedError where these are not theirs."""
        lengths = np.zeros(4 * len(spans), np.uint8)
        streams.fill(0, lengths[: streams.size])
        ends = lengths.size + np.cumsum(lengths.view(np.uint32), dtype=np.int64)
        if ends[-1] != streams.size:
            raise damaged("its length is not that of its parts")
        return cls(streams, rest, tree, cut, columns, spans, [lengths.size, *ends.tolist()])

    @property
    def width(self) -> int:
        """Bytes of a value."""
        return self.cut.bits // 8

    def made(self, number: int) -> Array:
        """The bytes of a segment."""
        begin, end = self.spans[number]
        out = np.empty((end - begin) * self.width, np.uint8)
        self.decode(number, out)
        return out

    def decode(self, number: int, out: Array) -> None:
        """The same into `out`, uint8. Raises DamagedError."""
        cut, begin, values, found = self.cut, self.spans[number][0], out.view(WORDS[self.cut.bits]), self._tops(number)
        one, last = values.dtype.type(1), values.dtype.type(cut.bits - 1)
        for first in range(0, values.size, AT_ONCE):
            part = values[first : first + AT_ONCE]
            low = kept("rest of archive", part.size * cut.width)
            self.rest.fill((begin + first) * cut.width, low)
            np.left_shift(found[first : first + part.size], cut.rest, out=part, casting="unsafe", dtype=part.dtype)
            np.bitwise_or(part, low.view(WORDS[8 * cut.width]), out=part)
            np.bitwise_or(part >> one, part << last, out=part)

    def _tops(self, number: int) -> Array:
        first, last = self.spans[number]
        coded = kept("codes of archive", self.places[number + 1] - self.places[number])
        self.streams.fill(self.places[number], coded)
        found = tops(last - first)
        found[:] = 0  # code looks at what is there
        model, coder = model_of(found, self.tree, self.columns, self.cut.mixed), np.zeros(3, np.uint64)
        arithmetic.start_decoder(coder, coded)
        columns = min(self.columns, found.size)
        if code(model, found, self.cut.mixed, columns, 0, found.size, self.tree.paths, coder, coded, True) < found.size:
            raise damaged("its coded bytes end too early")
        return found


class DecodedArchive:
    """What a payload stands for, to be read about in order."""

    def __init__(self, segments: Segments, threads: int):
        self.segments, self.size = segments, segments.spans[-1][1] * segments.width
        self._step = segments.spans[0][1] * segments.width
        self._ahead = _Ahead(segments.made, len(segments.spans), threads)

    def fill(self, begin: int, out: Array) -> None:
        place = 0
        while place < out.size:
            number, skipped = divmod(begin + place, self._step)
            part = self._ahead.get(number)[skipped:][: out.size - place]
            out[place : place + part.size] = part
            place += part.size


class _Ahead:
    """Segments that many threads read in any order. Some are decoded ahead, each once if they are read about in order.

    work(number) decodes one of `count` segments, on `threads` threads of its own. As many are kept, and one more.
    """

    def __init__(self, work: Callable[[int], Array], count: int, threads: int):
        self._work, self._count, self._threads = work, count, threads
        self._made: dict[int, Future[Array]] = {}
        self._lock, self._pool = Lock(), ThreadPoolExecutor(threads, thread_name_prefix="squeeze-ahead")

    def get(self, number: int) -> Array:
        """A segment, which is not to be written to. Raises what `work` does."""
        with self._lock:
            wanted = range(max(number - 1, 0), min(number + self._threads, self._count))
            for other in [other for other in self._made if other not in wanted]:
                self._made.pop(other).cancel()
            for other in range(number, wanted.stop):
                if other not in self._made:
                    self._made[other] = self._pool.submit(self._work, other)
            found = self._made[number]
        return found.result()
