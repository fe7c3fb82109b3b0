"""Long runs of one byte or of a short pattern: removed from a block before it is coded, and put back after.

Models take as long for a byte of a run as for any other, and disk images or programs with empty tables are mostly runs.
The rest is coded as one block, as if the runs were shorter, so the models learn from all of it. docs/format.md
specifies how runs are written (3.4).
"""

import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from squeeze.errors import DamagedError
from squeeze.system.binary import read_exactly, read_varint, varint

__all__ = ["LEAST", "MAX_PERIOD", "Runs", "find", "period_of", "read"]

LEAST = 2048  # bytes of the shortest run that is removed
MAX_PERIOD = 64
_GRID = 512  # distance of tested places in bytes; every run covers some
_KEPT = 32  # bytes of a run that stay, so that models see it begin
_PIECE = 1 << 16  # bytes that are compared at a time
_STEP = 16  # removed bytes are a multiple of 16, since some contexts are positions modulo 16


@dataclass(frozen=True)
class Runs:
    """The runs of a block of `size` raw bytes. Each repeats the `periods` bytes before it."""

    size: int
    starts: np.ndarray  # int64 [runs]: places in the block
    lengths: np.ndarray  # int64 [runs]
    periods: np.ndarray  # int64 [runs]

    @cached_property
    def within(self) -> np.ndarray:
        """The bytes that belong to runs, bool [size]."""
        found = np.zeros(self.size, bool)
        for start, length, _ in self._rows():
            found[start : start + length] = True
        return found

    @property
    def removed(self) -> int:
        """The number of bytes in all runs."""
        return int(self.lengths.sum())

    def rest(self, data: np.ndarray) -> np.ndarray:
        """Return the bytes of a block that belong to no run."""
        ends = np.concatenate([[0], self.starts + self.lengths])
        return np.concatenate([data[a:b] for a, b in zip(ends, [*self.starts, self.size], strict=True)])

    def expand(self, rest: np.ndarray) -> np.ndarray:
        """Return the block from the bytes that belong to no run."""
        data, done, place = np.empty(self.size, np.uint8), 0, 0
        for start, length, period in self._rows():
            data[place:start] = rest[done : done + start - place]
            done, place = done + start - place, start + length
            _repeat(data[start - period : place], period)
        data[place:] = rest[done:]
        return data

    def to_bytes(self) -> bytes:
        """Return the runs as they are written: the length in bytes of the rest, and three numbers for each run."""
        gaps = self.starts - np.concatenate([[0], self.starts + self.lengths])[:-1]
        rows = zip(gaps.tolist(), self.periods.tolist(), self.lengths.tolist(), strict=True)
        written = b"".join(varint(number) for row in rows for number in row)
        return varint(len(written)) + written

    def _rows(self) -> Iterator[tuple[int, int, int]]:
        return zip(self.starts.tolist(), self.lengths.tolist(), self.periods.tolist(), strict=True)


def find(data: np.ndarray, record: int) -> Runs | None:
    """Find the runs of a block that pay, or return None.

    Args:
        data: uint8 [n], the block.
        record: length of a record in bytes for tables, or 0; bytes keep their places within records.
    """
    rows: list[tuple[int, int, int]] = []
    place = 0
    for start, end, period in sorted(_candidates(data)):
        step = math.lcm(period, record or _STEP)
        begin = max(start, place) + max(_KEPT, period)
        if (length := (end - begin) // step * step) >= LEAST:
            rows.append((begin, length, period))
            place = begin + length
    if not rows:
        return None
    starts, lengths, periods = np.array(rows, np.int64).T
    return Runs(data.size, starts, lengths, periods)


def period_of(data: np.ndarray) -> int:
    """Return the period if uint8 `data` is one run, or 0: the shortest, and at most MAX_PERIOD."""
    for period in range(1, MAX_PERIOD + 1):
        pieces = range(0, data.size - period, _PIECE)
        if data.size >= LEAST and all(_repeats(data, period, begin, begin + _PIECE) for begin in (pieces[-1], *pieces)):
            return period
    return 0


def _repeats(data: np.ndarray, period: int, begin: int, end: int) -> bool:
    """Return whether the bytes from `begin` to `end` are those that are `period` bytes after them."""
    after = data[begin + period : end + period]
    return bool((data[begin : begin + after.size] == after).all())


def read(payload: bytes, size: int) -> tuple[Runs, bytes]:
    """Read what `to_bytes` wrote.

    Args:
        payload: starts with runs.
        size: raw bytes of the block.

    Returns:
        the runs, and the rest of the payload.

    Raises:
        DamagedError: if the runs are impossible.
    """
    file = io.BytesIO(payload)
    length, _ = read_varint(file)
    if length > len(payload):
        raise _impossible()
    listed, rows, place = io.BytesIO(read_exactly(file, length)), [], 0
    while listed.tell() < length:
        gap, period, count = (read_varint(listed)[0] for _ in range(3))
        place += gap
        if not (1 <= period <= min(MAX_PERIOD, place) and LEAST <= count <= size - place):
            raise _impossible()
        rows.append((place, count, period))
        place += count
    if not rows:
        raise _impossible()
    starts, lengths, periods = np.array(rows, np.int64).T
    return Runs(size, starts, lengths, periods), file.read()


def _impossible() -> DamagedError:
    return DamagedError("a block's runs are impossible: the file is damaged")


def _candidates(data: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Yield (start, end, period) of periodic stretches, with the shortest period if several fit."""
    count = (data.size - MAX_PERIOD) // _GRID
    if count < 1:
        return
    if period := period_of(data):
        yield 0, data.size, period
        return
    words = _words(data, 0, count)
    known = np.zeros(count, bool)
    for period in range(1, MAX_PERIOD + 1):
        hits = np.flatnonzero((words == _words(data, period, count)) & ~known)
        known[hits] = True
        for run in np.split(hits, np.flatnonzero(np.diff(hits) > 1) + 1) if hits.size else ():
            first, last = max(int(run[0]) - 1, 0) * _GRID, (int(run[-1]) + 2) * _GRID + MAX_PERIOD
            yield from _stretches(data[first : last + period], period, first)


def _repeat(part: np.ndarray, period: int) -> None:
    """Fill uint8 `part` with repetitions of its first `period` bytes."""
    done = period
    while done < part.size:
        count = min(done, part.size - done)
        part[done : done + count] = part[:count]
        done += count


def _words(data: np.ndarray, begin: int, count: int) -> np.ndarray:
    """Return uint64 [count]: the eight bytes at `begin`, and at every 512th byte after it."""
    words: np.ndarray = data[begin : begin + count * _GRID].view(np.uint64)[:: _GRID // 8]
    return words


def _stretches(part: np.ndarray, period: int, first: int) -> Iterator[tuple[int, int, int]]:
    """Yield (start, end, period) of the periodic stretches in a part that begins at `first`."""
    same = np.zeros(part.size - period + 2, bool)
    same[1:-1] = part[period:] == part[:-period]
    turns = np.flatnonzero(same[1:] != same[:-1])
    for start, end in turns.reshape(-1, 2).tolist():
        if end - start >= LEAST:
            yield first + start, first + end + period, period
