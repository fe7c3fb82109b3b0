"""The stage before all others: a stream in chunks, each with its copies from earlier bytes, in one serial pass."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from squeeze.codecs.stream import container, matches
from squeeze.codecs.stream.copies import Copies
from squeeze.errors import VerifyError

__all__ = ["Chunk", "chunks", "longest", "pays_alone"]

LEAST = 128  # bytes of the shortest copy
NEAR, LEAST_NEAR = 1 << 20, 4096  # bytes up to which a block's models find sources, and of a copy from there
_PAYS_ALONE = 8  # a stream shorter than a block has copies if they are at least one in so many of its bytes
_LARGEST = 4  # raw bytes of a chunk, in block sizes
_LEAST_SHARE = 64  # a chunk has copies if they are at least one in so many of its bytes
_OF_SLOT = 32  # bytes of the window for a slot of the table
_LEAST_SLOTS = 1 << 12
_ROWS = 1 << 16  # copies that there is room for at first
_PIECE = 1 << 24
_SLACK = 1 << 26  # bytes of a buffer beyond the window and the chunk


@dataclass(frozen=True)
class Chunk:
    """The next bytes of a stream: uint8 `data`, and their copies, if any pay."""

    data: np.ndarray
    copies: Copies | None


def longest(size: int) -> int:
    """Return the most raw bytes of a chunk of a stream whose blocks have at most `size` bytes that are no copies."""
    return min(size * _LARGEST, container.MAX_BLOCK)


def chunks(first: bytes, read: Callable[[int], bytes], size: int, window: int, known: int | None) -> Iterator[Chunk]:
    """Yield a stream in chunks.

    A chunk has `size` bytes that are no copies, or is four times as long, or the longest block, or the last.

    Args:
        first: the first bytes of the stream, at most `size`.
        read: returns the next N bytes, or fewer at the end.
        size: most raw bytes of a block.
        window: most bytes between a copy and its source.
        known: bytes of the stream, if known.
    """
    most = longest(size)
    matcher, piece = _Matcher(window, most, known), first
    while piece:
        pieces, copied = [piece], matcher.add(piece)
        length = len(piece)
        while (room := min(size - length + copied, most - length)) > 0 and (piece := read(room)):
            pieces.append(piece)
            copied += matcher.add(piece)
            length += len(piece)
        yield Chunk(np.frombuffer(b"".join(pieces), np.uint8), matcher.end())
        piece = read(size)


def pays_alone(data: bytes, window: int) -> bool:
    """Return whether copies within `data`, which is shorter than a block, clearly pay."""
    matcher = _Matcher(min(window, len(data)), len(data), len(data))
    return _PAYS_ALONE * matcher.add(data) >= len(data)


class _Matcher:
    """Finds copies in the bytes of a stream, of which a buffer has the last ones."""

    def __init__(self, window: int, largest: int, known: int | None):
        self._window, self._most = window, window + largest + _SLACK
        self._expected = min(known or self._most, self._most)
        self._data = np.empty(0, np.uint8)
        self._size = self._origin = self._chunk = 0  # bytes in the buffer, and offsets in the stream
        slots = max(1 << (min(window, known or window) // _OF_SLOT - 1).bit_length(), _LEAST_SLOTS)
        self._table = np.zeros(slots, np.uint64)
        self._samples = np.zeros(matches.SCRATCH, np.int64), np.zeros(matches.SCRATCH, np.uint64)
        self._rows = np.zeros((_ROWS, matches.COLUMNS), np.int64)
        self._known, self._first, self._last = np.zeros((_ROWS, matches.COLUMNS), np.int64), 0, 0
        self._begin = 0  # row of the chunk's first copy
        self._anchor, self._shift = 0, 0  # offset after the last copy, and its distance

    def add(self, piece: bytes) -> int:
        """Add bytes to the chunk, and return how many of them are copies."""
        begin = self._append(piece)
        oldest = max(self._chunk - self._window - self._origin, 0)
        chunk = self._chunk - self._origin
        span = np.array([self._origin, oldest, begin, self._size, LEAST, NEAR, LEAST_NEAR, chunk], np.int64)
        need = len(piece) // LEAST + 1
        if self._rows.shape[0] < need:
            self._rows = np.zeros((need, matches.COLUMNS), np.int64)
        state = np.array([max(self._anchor, self._chunk) - self._origin, self._shift], np.int64)
        count = matches.find(self._data, span, self._table, matches.GEAR, state, self._rows, *self._samples)
        self._anchor, self._shift = int(state[0]) + self._origin, int(state[1])
        return self._resolve(count)

    def _append(self, piece: bytes) -> int:
        """Put bytes into the buffer, and return the place of their first one."""
        if self._size + len(piece) > self._data.size:
            kept = min(self._size, self._window + self._origin + self._size - self._chunk)
            if self._data.size < self._most:  # the first time, or the stream is longer than it was said to be
                target = np.empty(self._most if self._data.size else max(self._expected, len(piece)), np.uint8)
            else:
                target = self._data
            shift = self._size - kept
            step = min(shift, _PIECE) if target is self._data else _PIECE
            for begin in range(0, kept, step):
                end = min(begin + step, kept)
                target[begin:end] = self._data[begin + shift : end + shift]
            self._data, self._origin, self._size = target, self._origin + shift, kept
        begin = self._size
        self._size += len(piece)
        self._data[begin : self._size] = np.frombuffer(piece, np.uint8)
        return begin

    def _resolve(self, count: int) -> int:
        """Resolve the copies that were found, prove them, and return their bytes."""
        result = np.array([self._last, 0], np.int64)
        before = self._last
        while matches.resolve(self._rows, count, self._known, self._first, before, self._window, result) < count:
            self._grow()
            before = self._last
        self._last = int(result[0])
        if not matches.is_same(self._data, self._origin, self._known, before, self._last):
            raise VerifyError("repeats differ from their sources: this machine's memory or processor is faulty")
        return int(result[1])

    def _grow(self) -> None:
        """Forget copies before the window, and make room for more."""
        known = self._known[self._first : self._last]
        keep = int(np.searchsorted(known[:, 0] + known[:, 1], self._chunk - self._window))
        kept = known[keep:]
        rows = np.zeros((max(2 * kept.shape[0], 2 * self._rows.shape[0], _ROWS), matches.COLUMNS), np.int64)
        rows[: kept.shape[0]] = kept
        self._begin -= self._first + keep
        self._known, self._first, self._last = rows, 0, kept.shape[0]

    def end(self) -> Copies | None:
        """End the chunk, and return its copies if they pay."""
        rows, begin, end = self._known[self._begin : self._last], self._chunk, self._origin + self._size
        self._chunk, self._begin = end, self._last
        if rows[:, 1].sum() * _LEAST_SHARE < end - begin:
            return None
        return Copies(end - begin, rows[:, 0] - begin, rows[:, 1].copy(), rows[:, 2] - begin)
