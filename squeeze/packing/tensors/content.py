"""Bytes of a tensor that are read in parts by several threads at once, from memory, a file or a computation.

Coders take a tensor in parts of whole segments, so that memory does not grow with it.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, TypeVar

import numpy as np

from squeeze.errors import DamagedError
from squeeze.system.arena import thread_buffer
from squeeze.system.binary import Positional
from squeeze.system.parallel import working

__all__ = [
    "PART",
    "Content",
    "Difference",
    "InFile",
    "InMemory",
    "InSegments",
    "Parts",
    "Section",
    "bytes_of",
    "in_parts",
    "pieces",
    "whole",
]

T = TypeVar("T")
Array = np.ndarray

PART = 1 << 21  # bytes that are read at a time


class Content(Protocol):
    """Bytes that can be read from any place; `size` is their number."""

    size: int

    def fill(self, begin: int, out: Array) -> None:
        """Read bytes from `begin` on into `out`, uint8, until it is full. Raises DamagedError."""


class InMemory:
    """A content in an array."""

    def __init__(self, data: Array):
        self.data, self.size = data, data.size

    def fill(self, begin: int, out: Array) -> None:
        out[:] = self.data[begin : begin + out.size]


class InFile:
    """A content of `size` bytes of a file from `begin` on."""

    def __init__(self, file: Positional, begin: int, size: int):
        self._file, self._begin, self.size = file, begin, size

    def fill(self, begin: int, out: Array) -> None:
        if self._file.fill(self._begin + begin, out) < out.size:
            raise DamagedError("the file became shorter while it was read")


class Section:
    """A content of `size` bytes of another content from `begin` on."""

    def __init__(self, content: Content, begin: int, size: int):
        self._content, self._begin, self.size = content, begin, size

    @classmethod
    def of(cls, content: Content, begin: int, size: int) -> Content:
        """Return the section, itself in memory if the content is, and no longer than that."""
        if isinstance(content, InMemory):
            return InMemory(content.data[begin : begin + size])
        return cls(content, begin, size)

    def fill(self, begin: int, out: Array) -> None:
        self._content.fill(self._begin + begin, out)


class Difference:
    """The XOR of two contents of the same size; `other` may be a difference in turn."""

    def __init__(self, one: Content, other: Content):
        self._one, self._other, self.size = one, other, one.size

    @classmethod
    def of(cls, one: Content, other: Content) -> Content:
        """Return the XOR, computed at once if both contents are in memory."""
        if isinstance(one, InMemory) and isinstance(other, InMemory):
            return InMemory(np.bitwise_xor(one.data, other.data))
        return cls(one, other)

    def fill(self, begin: int, out: Array) -> None:
        self._other.fill(begin, out)
        mine = thread_buffer("difference", out.size)
        self._one.fill(begin, mine)
        np.bitwise_xor(out, mine, out=out)


class InSegments:
    """A content of `size` bytes in segments of `step` bytes, of which only the needed ones are decoded."""

    size: int
    step: int
    room = "decoded"  # name of the memory for segments of which only a part is wanted

    def fill(self, begin: int, out: Array) -> None:
        most, end = max(PART // self.step, 1) * self.step, begin + out.size
        for start in range(begin // self.step * self.step, end, most):
            stop = min(start + most, -(-end // self.step) * self.step, self.size)
            first, last = start // self.step, -(-stop // self.step)
            if start >= begin and stop <= end:
                self._decode(first, last, out[start - begin : stop - begin])
                continue
            data = thread_buffer(self.room, stop - start)
            self._decode(first, last, data)
            inside = slice(max(start, begin), min(stop, end))
            out[inside.start - begin : inside.stop - begin] = data[inside.start - start : inside.stop - start]

    def _decode(self, first: int, last: int, out: Array) -> None:
        raise NotImplementedError


def bytes_of(content: Content, begin: int = 0, end: int | None = None) -> Array:
    """Return bytes begin to end, uint8, which must not be written to and are invalid after this thread's next call."""
    end = content.size if end is None else end
    if isinstance(content, InMemory):
        return content.data[begin:end]
    out = thread_buffer("content", end - begin)
    content.fill(begin, out)
    return out


def whole(content: Content, threads: int = 1) -> Array:
    """Return all bytes, uint8, in an array that may be kept."""
    if isinstance(content, InMemory):
        return content.data
    out = np.empty(content.size, np.uint8)
    for _ in in_parts(lambda begin, end: content.fill(begin, out[begin:end]), out.size, _part(content), threads):
        pass
    return out


def _part(content: Content) -> int:
    """Return the bytes of a content that are read at a time: whole segments."""
    return max(PART // content.step, 1) * content.step if isinstance(content, InSegments) else PART


def pieces(content: Content, threads: int = 1) -> Iterator[Array]:
    """Yield all bytes, uint8, in pieces. Each is valid until the one after the next is taken."""
    free, before, most = deque[Array](), None, _part(content)

    def work(begin: int, end: int) -> Array:
        try:
            room = free.pop()
        except IndexError:
            room = np.empty(most, np.uint8)
        content.fill(begin, room[: end - begin])
        return room[: end - begin]

    for piece in in_parts(work, content.size, most, threads):
        yield piece
        if before is not None:
            free.append(before)
        before = piece.base


@dataclass(frozen=True)
class Parts:
    """The values of a tensor, of type `kind`, in parts of whole segments of `per_segment` values."""

    content: Content
    kind: type
    per_segment: int
    threads: int = 1

    @property
    def count(self) -> int:
        return self.content.size // np.dtype(self.kind).itemsize

    @property
    def segments(self) -> int:
        return -(-self.count // self.per_segment)

    def values(self, first: int, last: int) -> Array:
        """Return the values of segments first to last."""
        width = np.dtype(self.kind).itemsize
        step = self.per_segment * width
        return bytes_of(self.content, first * step, min(last * step, self.count * width)).view(self.kind)

    def map(self, work: Callable[[Array, int, int], T]) -> Iterator[T]:
        """Yield work(values, first, last) over all segments, in order, some parts at a time on `threads` threads."""
        most = max(PART // (self.per_segment * np.dtype(self.kind).itemsize), 1)
        if self.threads > 1 and self.segments >= 4:
            most = min(most, -(-self.segments // (2 * self.threads)))

        if self.segments <= most:
            return iter((work(self.values(0, self.segments), 0, self.segments),))

        def read_and_work(first: int, last: int) -> T:
            return work(self.values(first, last), first, last)

        return in_parts(read_and_work, self.segments, most, self.threads)


def in_parts(work: Callable[[int, int], T], count: int, step: int, threads: int) -> Iterator[T]:
    """Yield work(first, last) for each `step` of `count` items, in order.

    Args:
        work: called with the first item and the one after the last.
        count: number of items.
        step: items of a call.
        threads: threads that work; a few results at most wait to be taken.
    """
    edges = [*range(0, count, step), count]
    if threads <= 1 or len(edges) <= 2:
        for first, last in pairwise(edges):
            yield work(first, last)
        return
    with working(threads) as waiting:
        for first, last in pairwise(edges):
            waiting.add(work, first, last)
            if len(waiting) > threads:  # one result waits while its predecessor is taken
                yield waiting.take()
        while waiting:
            yield waiting.take()
