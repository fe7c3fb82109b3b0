"""Keep what blocks of a stream code themselves, for blocks that repeat it: the last ones, or those that are needed."""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from squeeze.codecs.stream.copies import Literals, restore
from squeeze.errors import DamagedError
from squeeze.system.limits import Limits

__all__ = ["History", "LoadedBlocks", "ReadBack"]

ReadBack = Callable[[int, int], np.ndarray]
_ROOM = 1 << 26  # bytes of blocks that are kept although they can be read back
_LEAST_ROOM = 1 << 24  # bytes of loaded blocks that are kept whatever the limits


class History:
    """The blocks of a stream that is decoded in order, as far back as later ones may repeat them."""

    def __init__(self, window: int, limits: Limits | None, read_back: ReadBack | None = None):
        """Prepare for a stream.

        Args:
            window: most bytes between a block and a source of its copies; 0 if no block has any.
            limits: of memory.
            read_back: reads raw bytes (begin, end) of the stream that were written, uint8; None: all are kept.
        """
        self._window, self._limits, self._read_back = window, limits, read_back
        self._room = _ROOM if limits is None or limits.allows_memory(_ROOM) else 0
        self._blocks, self._kept = deque[_Kept](), 0
        self._dropped = 0  # number of the first block whose bytes are kept, among `_blocks`
        self._last: Literals | None = None  # the last block that was read back
        self._starts: list[int] = []
        self.end = 0  # raw bytes of all blocks so far

    def add(self, block: Literals) -> None:
        """Add the next block, and forget those that are too far back."""
        self.end = block.end
        if not self._window or not block.size:
            return
        self._blocks.append(_Kept(block))
        self._starts.append(block.begin)
        self._kept += block.rest.size
        while self._read_back and self._kept > self._room:
            self._kept -= self._blocks[self._dropped].drop()
            self._dropped += 1
        while self._blocks[0].block.end <= self.end - self._window:
            self._kept -= self._blocks.popleft().drop()
            self._dropped = max(self._dropped - 1, 0)
        if len(self._starts) > 2 * len(self._blocks):
            self._starts = [kept.block.begin for kept in self._blocks]
        if self._limits:
            self._limits.need_memory(self._kept, f"the last {self._window >> 20:,} MiB, which later blocks may repeat,")

    def at(self, offset: int) -> Literals:
        """Return the block that holds an offset of the stream.

        Raises:
            DamagedError: if it is too far back.
        """
        place = bisect_right(self._starts, offset) - 1 - (len(self._starts) - len(self._blocks))
        if offset >= self.end or place < 0:
            raise DamagedError("a block repeats bytes that are too far back: the file is damaged")
        kept = self._blocks[place]
        return self._again(kept.block) if kept.is_dropped else kept.block

    def _again(self, block: Literals) -> Literals:
        """Return a block whose bytes are read back."""
        assert self._read_back
        if self._last is None or self._last.begin != block.begin:
            data = self._read_back(block.begin, block.end)
            rest = block.copies.rest(data) if block.copies else data
            self._last = replace(block, rest=rest)
        return self._last


class _Kept:
    """A block that may be repeated, and whether its bytes were dropped."""

    def __init__(self, block: Literals):
        self.block, self.is_dropped = block, False

    def drop(self) -> int:
        """Drop the block's bytes, and return how many were kept."""
        size = 0 if self.is_dropped else self.block.rest.size
        self.block, self.is_dropped = replace(self.block, rest=self.block.rest[:0].copy()), True
        return size


class LoadedBlocks:
    """The blocks of a stream that were asked for last."""

    def __init__(self, starts: list[int], load: Callable[[int], Literals], window: int, limits: Limits | None):
        """Prepare for a stream.

        Args:
            starts: offsets of its blocks that are not empty.
            load: decodes the block of a number.
            window: most bytes between a block and a source of its copies, and most bytes to keep.
            limits: of memory.
        """
        self._starts, self._load = starts, load
        self._room = window if limits is None or limits.allows_memory(window) else _LEAST_ROOM
        self._blocks: dict[int, Literals] = {}  # the last used comes last

    def at(self, offset: int) -> Literals:
        """Return the block that holds an offset of the stream."""
        number = bisect_right(self._starts, offset) - 1
        if number < 0:
            raise DamagedError("a block repeats bytes before the stream: the file is damaged")
        return self.block(number)

    def block(self, number: int) -> Literals:
        """Return the block of a number."""
        block = self._blocks.pop(number, None) or self._load(number)
        self._blocks[number] = block
        while len(self._blocks) > 1 and sum(kept.rest.size for kept in self._blocks.values()) > self._room:
            del self._blocks[next(iter(self._blocks))]
        return block

    def restored(self, number: int) -> np.ndarray:
        """Return the raw bytes of a block, uint8."""
        block = self.block(number)
        return restore(block.copies, block.rest, block.begin, self.at) if block.copies else block.rest
