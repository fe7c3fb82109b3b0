"""The lanes of a block: how its entries are divided, and which of them the language model is fed."""

from dataclasses import dataclass
from functools import cached_property
from typing import BinaryIO

import numpy as np

from squeeze.errors import DamagedError
from squeeze.system.binary import read_varint, varint

MAX_LANES = 1024
MAX_LANES_WITH_REPEATS = 64
TAIL = 16  # of a run of repeats, the last entries, which the language model is fed
MAX_POSITIONS = 1 << 20  # sum of all lanes' windows


@dataclass(frozen=True)
class LaneLayout:
    """The division of a block's entries into lanes."""

    entries: int
    lanes: int
    window: int
    lengths: tuple[int, ...]  # raw bytes of each lane
    repeats: bool = False  # whether repeats bypass the model

    @classmethod
    def of(cls, spelled: np.ndarray, lanes: int, window: int) -> "LaneLayout":
        """Return the layout of entries.

        Args:
            spelled: int64 [entries], bytes that each entry spells.
            lanes: number of lanes.
            window: positions that a token is predicted from.
        """
        ends = np.cumsum(cls(spelled.size, lanes, window, ()).counts)
        bounds = np.concatenate([[0], np.cumsum(spelled)])[np.concatenate([[0], ends])]
        return cls(spelled.size, lanes, window, tuple(int(n) for n in np.diff(bounds)))

    @classmethod
    def read(cls, payload: BinaryIO, length: int) -> "LaneLayout":
        """Read the start of the payload of a block of `length` raw bytes.

        Raises:
            DamagedError: if the layout is impossible.
        """
        entries, lanes, window = (read_varint(payload)[0] for _ in range(3))
        count, repeats = lanes >> 1, bool(lanes & 1)
        most_lanes = min(MAX_LANES_WITH_REPEATS if repeats else MAX_LANES, entries)
        if not 1 <= count <= most_lanes or entries > length or not 1 <= window * 16 * count <= MAX_POSITIONS:
            raise DamagedError("a block's lanes are impossible: the file is damaged")
        lengths = [read_varint(payload)[0] for _ in range(count - 1)]
        lengths.append(length - sum(lengths))
        if min(lengths) < 1:
            raise DamagedError("a block's lanes are impossible: the file is damaged")
        return cls(entries, count, window * 16, tuple(lengths), repeats)

    def to_bytes(self) -> bytes:
        """Return the bytes that `read` reads; the length of the last lane follows from that of the block."""
        numbers = (self.entries, 2 * self.lanes + self.repeats, self.window // 16, *self.lengths[:-1])
        return b"".join(map(varint, numbers))

    def count(self, lane: int) -> int:
        """Return the number of entries of a lane."""
        return self.entries // self.lanes + (lane < self.entries % self.lanes)

    @property
    def counts(self) -> np.ndarray:
        """The number of entries of each lane, int64 [lanes]."""
        return np.array([self.count(lane) for lane in range(self.lanes)], np.int64)

    @property
    def steps(self) -> int:
        return self.count(0)

    @property
    def used_window(self) -> int:
        """Positions of a lane's window that exist; those after its last entry need no memory."""
        return min(self.window, -(-self.steps // 16) * 16)

    def active(self, step: int) -> int:
        """Return the number of lanes that have an entry at this step, always the first ones."""
        return self.lanes if step < self.count(self.lanes - 1) else self.entries % self.lanes


@dataclass(frozen=True)
class Feed:
    """The entries of each lane that the language model is fed, and those that it predicts.

    A step is one entry of each lane that goes through the model. Lanes may have different numbers of steps.
    """

    table: np.ndarray  # int64 [lanes, steps]: predicted entries, -1 after a lane's end
    counts: np.ndarray  # int64 [lanes]: steps of each lane
    fed: np.ndarray  # int64 [lanes, *]: entries to feed, -1 for the start token
    rows: np.ndarray  # int64 [lanes, steps]: the fed entry after which a step's entry is predicted
    ruled_out: np.ndarray  # int64 [lanes, steps]: the leaf that an entry is not, or -1
    is_of_all: bool = False  # whether all entries are fed

    @classmethod
    def of_all(cls, entries: np.ndarray, layout: LaneLayout) -> "Feed":
        """Feed all entries."""
        table = table_of(entries, layout)
        fed = np.concatenate([np.full((layout.lanes, 1), -1), table[:, :-1]], axis=1)
        rows = np.broadcast_to(np.arange(layout.steps), table.shape)
        return cls(table, layout.counts, fed, rows, np.full_like(table, -1), True)

    @classmethod
    def without(cls, repeated: np.ndarray, ruled_out: np.ndarray, entries: np.ndarray, layout: LaneLayout) -> "Feed":
        """Feed entries without repeats, except the last TAIL of each run.

        Args:
            repeated: bool [entries], repeats.
            ruled_out: int64 [entries], the leaf that an entry is not, or -1.
            entries: int64, all entries of the block.
            layout: its lanes.
        """
        parts = []
        for end, count in zip(np.cumsum(layout.counts), layout.counts, strict=True):
            lane = slice(end - count, end)
            through = ~repeated[lane]
            places = np.arange(count)
            following = np.minimum.accumulate(np.where(through, places, count + TAIL + 1)[::-1])[::-1]
            kept = following - places <= TAIL
            rows = np.cumsum(kept)[through] - kept[through]
            fed = np.concatenate([[-1], entries[lane][kept]])[: rows[-1] + 1]
            parts.append((entries[lane][through], fed, rows, ruled_out[lane][through]))
        counts = np.array([len(part[0]) for part in parts])
        table, fed, rows, never = (_stacked([part[k] for part in parts]) for k in range(4))
        return cls(table, counts, fed, rows, never)

    def of(self, begin: int, end: int) -> "Feed":
        """Return the part of the lanes from `begin` to `end`."""
        own = slice(begin, end)
        return Feed(
            self.table[own], self.counts[own], self.fed[own], self.rows[own], self.ruled_out[own], self.is_of_all
        )

    def bounds(self, most: int) -> list[int]:
        """Return steps at which to cut, so that no lane is fed more than `most` entries between, unless one step needs
        more."""
        if self.is_of_all:
            return [*range(0, self.steps, most), self.steps]
        fed = self._so_far
        bounds, before = [0], np.zeros(len(fed), np.int64)
        for step in range(1, self.steps):
            if (fed[:, step] - before).max() > most:
                before = fed[:, step - 1]
                bounds.append(step)
        return [*bounds, self.steps]

    def part(self, first: int, end: int) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """Return what to feed for the steps from `first` to `end`.

        Returns:
            entries int64 [lanes, *], the number of them in each lane (None: all), and int64 [lanes, steps], the row
                after which each
            entry is predicted, counted over all lanes.
        """
        if self.is_of_all:
            rows = np.arange(len(self.fed))[:, None] * (end - first) + np.arange(end - first)
            return self.fed[:, first:end], None, rows
        fed = self._so_far
        begin = fed[:, first - 1] if first else np.zeros(len(fed), np.int64)
        counts = fed[:, end - 1] - begin
        columns = np.minimum(begin[:, None] + np.arange(counts.max()), self.fed.shape[1] - 1)
        rows = self.rows[:, first:end] - begin[:, None] + (np.cumsum(counts) - counts)[:, None]
        return np.take_along_axis(self.fed, columns, axis=1), counts, rows

    @property
    def size(self) -> int:
        """Number of entries that the model is fed."""
        return int((self.rows.max(axis=1) + 1).sum())

    @cached_property
    def _so_far(self) -> np.ndarray:
        """Entries fed by the end of each step, int64 [lanes, steps]."""
        return np.maximum.accumulate(self.rows + 1, axis=1)

    @property
    def most_at_once(self) -> int:
        """Most entries of a lane for one step."""
        return 1 if self.is_of_all else 1 + TAIL

    @property
    def steps(self) -> int:
        return int(self.table.shape[1])

    def active(self, step: int) -> int:
        """Return the number of lanes up to the last one with an entry at this step."""
        return int(np.flatnonzero(self.counts > step)[-1]) + 1


def _stacked(rows: list[np.ndarray]) -> np.ndarray:
    table = np.full((len(rows), max(row.size for row in rows)), -1, np.int64)
    for lane, row in enumerate(rows):
        table[lane, : row.size] = row
    return table


def table_of(entries: np.ndarray, layout: LaneLayout) -> np.ndarray:
    """Return entries as int64 [lanes, steps], -1 after a lane's end."""
    ends, counts = np.cumsum(layout.counts), layout.counts
    return _stacked([entries[end - count : end] for end, count in zip(ends, counts, strict=True)])
