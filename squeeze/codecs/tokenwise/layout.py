"""How a block's tokens lie in lanes, and the bytes that say so in a file."""

from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from squeeze.errors import DamagedError
from squeeze.system.varint import read_varint, varint

MAX_LANES = 1024
MAX_LANES_WITH_REPEATS = 64
MAX_POSITIONS = 1 << 20  # of all lanes' windows together


@dataclass(frozen=True)
class LaneLayout:
    """How a block's entries lie in lanes."""

    entries: int
    lanes: int
    window: int
    lengths: tuple[int, ...]  # bytes of each lane
    repeats: bool = False  # whether entries that repeat go without the model

    @classmethod
    def of(cls, spelled: np.ndarray, lanes: int, window: int) -> "LaneLayout":
        """Return the layout of entries that spell int64 `spelled` bytes each."""
        ends = np.cumsum(cls(spelled.size, lanes, window, ()).counts)
        bounds = np.concatenate([[0], np.cumsum(spelled)])[np.concatenate([[0], ends])]
        return cls(spelled.size, lanes, window, tuple(int(n) for n in np.diff(bounds)))

    @classmethod
    def read(cls, payload: BinaryIO, length: int) -> "LaneLayout":
        """Read the start of the payload of a block of `length` raw bytes. Raises DamagedError if it is impossible."""
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
        """Return what `read` reads; the length of the last lane follows from that of the block."""
        numbers = (self.entries, 2 * self.lanes + self.repeats, self.window // 16, *self.lengths[:-1])
        return b"".join(map(varint, numbers))

    def count(self, lane: int) -> int:
        """Entries of a lane."""
        return self.entries // self.lanes + (lane < self.entries % self.lanes)

    @property
    def counts(self) -> np.ndarray:
        """int64 [lanes]"""
        return np.array([self.count(lane) for lane in range(self.lanes)], np.int64)

    @property
    def steps(self) -> int:
        return self.count(0)

    @property
    def seen(self) -> int:
        """Positions of a lane's window that there will be: those beyond its last entry need no memory."""
        return min(self.window, -(-self.steps // 16) * 16)

    def active(self, step: int) -> int:
        """Lanes that have an entry at this step: always the first ones."""
        return self.lanes if step < self.count(self.lanes - 1) else self.entries % self.lanes
