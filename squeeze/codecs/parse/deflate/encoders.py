"""The settings by which an encoder's choices are predicted, and how files say them."""

import io
from dataclasses import dataclass

import numpy as np

from squeeze.codecs.parse.deflate.matcher import (
    BY_CRC,
    BY_PRODUCTS,
    CHEAPEST,
    FOUR,
    GREEDY,
    LAZY_MATCHING,
    LITERALS_ONLY,
    MEDIUM,
    RUNS,
    THREE,
)
from squeeze.errors import DamagedError
from squeeze.system.binary import read_exactly, read_varint, varint

__all__ = ["BLOCK", "CHEAPEST_LEVELS", "FILTERED", "FREE", "ISAL_LEVELS", "OTHERS", "UNFILTERED", "Encoder"]

BLOCK = (1 << 14) - 1  # tokens of zlib's blocks by default
_LEVELS = (  # speed, good, laziest, nice and chain
    (LITERALS_ONLY, 0, 0, 0, 0),
    (GREEDY, 4, 4, 8, 4),
    (GREEDY, 4, 5, 16, 8),
    (GREEDY, 4, 6, 32, 32),
    (LAZY_MATCHING, 4, 4, 16, 16),
    (LAZY_MATCHING, 8, 16, 32, 32),
    (LAZY_MATCHING, 8, 16, 128, 128),
    (LAZY_MATCHING, 8, 32, 128, 256),
    (LAZY_MATCHING, 32, 128, 258, 1024),
    (LAZY_MATCHING, 32, 258, 258, 4096),
    (LAZY_MATCHING, 259, 258, 258, 4096),  # of encoders other than zlib
    (RUNS, 0, 0, 0, 0),  # zlib's strategy for runs
    (GREEDY, 4, 0, 258, 1),  # zlib-ng at level 1, and at level 2
    (GREEDY, 4, 4, 8, 4),
    (GREEDY, 259, 258, 32, 2),  # libdeflate at level 1
    (GREEDY, 4, 0, 258, 1),  # ISA-L
    (CHEAPEST, 0, 0, 258, 256),  # zopfli, libdeflate at level 12
    (CHEAPEST, 0, 0, 150, 256),  # libdeflate at level 11
    (CHEAPEST, 0, 0, 128, 128),  # 7-Zip at level 9
    (CHEAPEST, 0, 0, 75, 35),  # libdeflate at level 10
    (CHEAPEST, 0, 0, 64, 64),  # 7-Zip at level 7
    (CHEAPEST, 0, 0, 32, 32),  # 7-Zip at level 5
    (GREEDY, 4, 96, 16, 6),  # zlib-ng at levels 3 to 6
    (GREEDY, 4, 192, 32, 24),
    (MEDIUM, 8, 256, 32, 32),
    (MEDIUM, 8, 256, 128, 128),
    (LAZY_MATCHING, 259, 258, 258, 1),  # ISA-L at level 3
)
_OTHER, _QUICK, _FAST, _TWO, _ISAL = 10, 12, 13, 14, 15
CHEAPEST_LEVELS, _NG_LEVELS, _ISAL_LAZY = range(16, 22), range(22, 26), 26
# Encoders that match at any position of the window, and join the code lengths:
FREE = (_OTHER, _TWO, _ISAL, _ISAL_LAZY, *CHEAPEST_LEVELS)
_HASHED = {**dict.fromkeys((_QUICK, _FAST, _TWO, *_NG_LEVELS), FOUR), _ISAL: BY_CRC, _ISAL_LAZY: BY_PRODUCTS}
ISAL_LEVELS = (_ISAL, 6), (_ISAL, 8), (_ISAL_LAZY, 8)  # with memory levels: hashes have 13 or 15 bits
_HEAD, _TAIL = {_ISAL: 3}, dict.fromkeys((_FAST, *_NG_LEVELS), 1)
UNFILTERED, FILTERED = (6, 9, 1, 5, 8, 7, 4, 3, 2), (6, 9, 5, 8, 7, 4)  # zlib's levels, the usual ones first
OTHERS = (*range(_OTHER, _ISAL), *_NG_LEVELS)


@dataclass(frozen=True)
class Encoder:
    """The settings by which an encoder's choices are predicted.

    Attributes:
        level: That of zlib, 0 for literals only, 11 for runs only, or others for other encoders.
        filtered: Whether short matches are not taken, as libpng asks for.
        joined: Whether the code lengths of literals and distances are repeated together.
        memory: zlib's memory level, 1 to 9.
        window: The bits of a window, 8 to 15.
        block: The tokens of a block.
    """

    level: int = 6
    filtered: bool = False
    joined: bool = False
    memory: int = 8
    window: int = 15
    block: int = BLOCK

    @property
    def settings(self) -> np.ndarray:
        """The settings of a matcher, int64 [14]."""
        first, hashed = -1 if self.level in FREE else 0, _HASHED.get(self.level, THREE)
        own = 1 << self.window, self.memory + 7, self.filtered, self.block, first, self.joined
        joining = _HEAD.get(self.level, 0), _TAIL.get(self.level, 0)
        return np.array((*_LEVELS[self.level], *own, hashed, *joining), np.int64)

    def to_bytes(self) -> bytes:
        """Return the settings in three bytes and a number."""
        flags = self.level | self.filtered << 6 | self.joined << 7
        return bytes([flags, self.memory << 4 | self.window]) + varint(self.block)

    @classmethod
    def read(cls, file: io.BytesIO) -> "Encoder":
        """Read what `to_bytes` wrote, or raise DamagedError."""
        flags, sizes = read_exactly(file, 2)
        found = cls(flags & 63, bool(flags & 64), bool(flags & 128), sizes >> 4, sizes & 15, read_varint(file)[0])
        if found.level >= len(_LEVELS) or not 1 <= found.memory <= 9 or not 8 <= found.window <= 15:
            raise DamagedError("the settings of a deflate stream are impossible: the file is damaged")
        return found
