"""Copies of other bytes in a block of a stream, and the bytes that blocks code themselves, which are their sources."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from squeeze.errors import DamagedError
from squeeze.numerics.jit import kernel

__all__ = ["Copies", "Literals", "restore"]

_JOINED = 1 << 20  # sources at most so far apart are in one range


@dataclass(frozen=True)
class Copies:
    """The copies of a block of `size` raw bytes. Sources count from the block's start, and are negative before it."""

    size: int
    places: np.ndarray  # int64 [copies], in order
    lengths: np.ndarray  # int64 [copies]
    sources: np.ndarray  # int64 [copies]

    @property
    def removed(self) -> int:
        """The number of bytes in all copies."""
        return int(self.lengths.sum())

    @cached_property
    def before(self) -> np.ndarray:
        """The bytes in all copies before each, int64 [copies + 1]."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    @property
    def places_in_rest(self) -> np.ndarray:
        """The places of the copies in the rest, int64 [copies]."""
        return self.places - self.before[:-1]

    @cached_property
    def within(self) -> np.ndarray:
        """The bytes that belong to copies, bool [size]."""
        found = np.zeros(self.size, bool)
        for place, length in zip(self.places.tolist(), self.lengths.tolist(), strict=True):
            found[place : place + length] = True
        return found

    def rest(self, data: np.ndarray) -> np.ndarray:
        """Return the bytes of a block that belong to no copy."""
        ends = [0, *(self.places + self.lengths).tolist()]
        return np.concatenate([data[a:b] for a, b in zip(ends, [*self.places.tolist(), self.size], strict=True)])

    def equals(self, other: "Copies") -> bool:
        """Return whether other copies are the same."""
        rows = ((self.places, other.places), (self.lengths, other.lengths), (self.sources, other.sources))
        return self.size == other.size and all(np.array_equal(one, two) for one, two in rows)

    def cut(self, begin: int, end: int) -> "Copies":
        """Return the copies in a range of the block as those of a block of its own, if none crosses its ends."""
        first, last = np.searchsorted(self.places, (begin, end)).tolist()
        rows = self.places[first:last] - begin, self.lengths[first:last], self.sources[first:last] - begin
        return Copies(end - begin, *rows)

    @cached_property
    def ranges(self) -> list[tuple[int, int]]:
        """The ranges (start, end) before the block that sources are in, as few as pay."""
        early = np.flatnonzero(self.sources < 0)
        order = early[np.argsort(self.sources[early], kind="stable")]
        found: list[list[int]] = []
        for start, length in zip(self.sources[order].tolist(), self.lengths[order].tolist(), strict=True):
            if found and start - found[-1][1] <= _JOINED:
                found[-1][1] = max(found[-1][1], start + length)
            else:
                found.append([start, start + length])
        if found and found[-1][1] > -_JOINED:
            found[-1][1] = 0
        return [(start, end) for start, end in found]


@dataclass(frozen=True)
class Literals:
    """The bytes that a block of a stream codes itself, which are in no copy.

    Attributes:
        begin: The block's offset in the raw bytes of the stream.
        size: Its raw bytes.
        rest: Its bytes that belong to no copy, uint8.
        copies: Its copies, or None if it has none.
    """

    begin: int
    size: int
    rest: np.ndarray
    copies: Copies | None = None

    @property
    def end(self) -> int:
        return self.begin + self.size


def restore(found: Copies, rest: np.ndarray, begin: int, at: Callable[[int], Literals]) -> np.ndarray:
    """Return the raw bytes of a block, uint8.

    Args:
        found: its copies.
        rest: uint8, its other bytes.
        begin: its offset in the raw bytes of the stream.
        at: returns the block that holds an offset before it.

    Raises:
        DamagedError: if a source is in a copy.
    """
    data, own = np.empty(found.size, np.uint8), Literals(begin, found.size, rest, found)
    _spread(found.places, found.lengths, rest, data)
    order = np.argsort(found.sources, kind="stable")
    rows = np.ascontiguousarray(np.stack([found.places, found.lengths, found.sources + begin], 1)[order])
    while rows.shape[0]:
        source = int(rows[0, 2])
        block = own if source >= begin else at(source)
        copies = block.copies or _NONE
        taken = _take(rows, block.begin, block.end, block.rest, copies.places, copies.before, data)
        if taken < 0:
            raise DamagedError("a block repeats bytes that another block repeats: the file is damaged")
        rows = rows[taken:]
    return data


_NONE = Copies(0, *(np.zeros(0, np.int64) for _ in range(3)))


@kernel
def _spread(places, lengths, rest, data):
    """Put the bytes of the rest to their places."""
    done, place = 0, 0
    for i in range(places.size + 1):
        end = places[i] if i < places.size else data.size
        for j in range(place, end):
            data[j] = rest[done]
            done += 1
        if i < places.size:
            place = end + lengths[i]


@kernel
def _take(rows, begin, end, rest, places, before, data):
    """Copy what a block has, and return the number of rows that are done, or -1 if a source is in a copy.

    Args:
        rows: int64 [n, 3]: place, length and source of copies by their sources. Those that reach beyond the block are
            cut, and moved to the end of the rows that begin in it.
        begin, end: of the block in the stream.
        rest, places, before: the block's bytes without copies, and its copies.
        data: uint8, gets the bytes.
    """
    count = 0
    while count < rows.shape[0] and rows[count, 2] < end:
        count += 1
    done = count
    for i in range(count - 1, -1, -1):
        place, length, source = rows[i, 0], rows[i, 1], rows[i, 2]
        size = min(length, end - source)
        low, high = 0, places.size
        while low < high:  # the first copy after the source's first byte
            middle = (low + high) // 2
            if begin + places[middle] > source:
                high = middle
            else:
                low = middle + 1
        removed = before[low]
        if low and source < begin + places[low - 1] + before[low] - before[low - 1]:
            return -1
        if low < places.size and source + size > begin + places[low]:
            return -1
        start = source - begin - removed
        for j in range(size):
            data[place + j] = rest[start + j]
        if size < length:
            done -= 1
            rows[done, 0], rows[done, 1], rows[done, 2] = place + size, length - size, end
    return done
