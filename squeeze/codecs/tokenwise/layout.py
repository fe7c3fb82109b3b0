"""How a block's tokens lie in lanes, and the bytes that say so in a file."""

from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from squeeze.codecs.varint import read_varint, varint
from squeeze.errors import DamagedError

MAX_LANES = 1024
MAX_LANES_WITH_REPEATS = 64
# As a writer chooses them: each coder costs about four bytes, and serves one thread.
_SHARE, _MOST_CODERS, _BYTES_OF_CODER = 4, 16, 1 << 14
MAX_POSITIONS = 1 << 20  # of all lanes' windows together


@dataclass(frozen=True)
class LaneLayout:
    """How a block's entries lie in lanes."""

    entries: int
    lanes: int
    window: int
    lengths: tuple[int, ...]  # bytes of each lane
    batch: int = 0  # lanes that are coded by one state of the models; 0: in turns
    share: int = 1  # lanes of a batch that share an arithmetic coder
    repeats: bool | None = None  # whether entries that repeat go without the model; None where the format has none

    @classmethod
    def of(
        cls, spelled: np.ndarray, lanes: int, window: int, batch: int = 0, repeats: bool | None = None
    ) -> "LaneLayout":
        """`spelled`: int64, bytes of each entry."""
        batch = min(batch, lanes)
        ends = np.cumsum(cls(spelled.size, lanes, window, ()).counts)
        bounds = np.concatenate([[0], np.cumsum(spelled)])[np.concatenate([[0], ends])]
        lengths = tuple(int(n) for n in np.diff(bounds))
        coders = max(_MOST_CODERS, sum(lengths) // _BYTES_OF_CODER)
        share = min(max(_SHARE, -(-batch // coders)), max(batch, 1))
        return cls(spelled.size, lanes, window, lengths, batch, share, repeats)

    @classmethod
    def read(cls, payload: BinaryIO, length: int, in_batches: bool = False, with_repeats: bool = False) -> "LaneLayout":
        """What a block of `length` raw bytes begins with. Raises DamagedError where it is impossible."""
        entries, count, window = (read_varint(payload)[0] for _ in range(3))
        batch, share = (read_varint(payload)[0] for _ in range(2)) if in_batches else (0, 1)
        repeats = bool(count & 1) if with_repeats else None
        count >>= with_repeats
        most_lanes = min(MAX_LANES_WITH_REPEATS if repeats else MAX_LANES, entries)
        if not 1 <= count <= most_lanes or entries > length or not 1 <= window * 16 * count <= MAX_POSITIONS:
            raise DamagedError("a block's lanes are impossible: the file is damaged")
        if in_batches and not 1 <= share <= batch <= count:
            raise DamagedError("a block's batches are impossible: the file is damaged")
        lengths = [read_varint(payload)[0] for _ in range(count - 1)]
        lengths.append(length - sum(lengths))
        if min(lengths) < 1:
            raise DamagedError("a block's lanes are impossible: the file is damaged")
        return cls(entries, count, window * 16, tuple(lengths), batch, share, repeats)

    def to_bytes(self) -> bytes:
        """What `read` reads; the length of the last lane follows from that of the block."""
        batches = (self.batch, self.share) if self.batch else ()
        lanes = self.lanes if self.repeats is None else 2 * self.lanes + self.repeats
        numbers = (self.entries, lanes, self.window // 16, *batches, *self.lengths[:-1])
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
