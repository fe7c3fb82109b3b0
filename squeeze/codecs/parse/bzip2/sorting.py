"""The Burrows-Wheeler transform of a block: its rotations in order (Burrows and Wheeler, SRC report 124, 1994).

Ranks by 8 bytes become ranks by 16, 32 and so on (Manber and Myers, "Suffix arrays", 1993). Only rotations that share a
rank are sorted again (Larsson and Sadakane, "Faster suffix sorting", 2007).
"""

import numpy as np

__all__ = ["transform"]

_FIRST = 8  # bytes of the first ranks


def transform(block: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the last bytes of a block's rotations in their order, and the first place of the rotations equal to it.

    Args:
        block: uint8 [n], n at least 1.
    """
    order, first = _rotations(block)
    return block[order - 1], first


def _rotations(block: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the starts of all rotations in order, int64 [n], and the rank of the whole block."""
    keys = np.zeros(block.size, np.uint64)
    for k in range(_FIRST):
        keys = keys << np.uint64(8) | np.roll(block, -k).astype(np.uint64)
    order = np.argsort(keys)
    rank = np.empty(block.size, np.int64)
    places, length = np.arange(block.size), _FIRST
    starts = _starts(keys[order], places)
    rank[order] = starts
    while True:
        places = places[_is_shared(starts)]
        if not places.size or length >= block.size:
            return order, int(rank[0])
        tied = order[places]
        combined = rank[tied] * block.size + rank[(tied + length) % block.size]
        again = np.argsort(combined)
        order[places] = tied = tied[again]
        starts = _starts(combined[again], places)
        rank[tied] = starts
        length *= 2


def _starts(keys: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return for each of sorted keys the place of the first one that is equal."""
    begins = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return np.repeat(places[begins], np.diff(begins, append=keys.size))


def _is_shared(starts: np.ndarray) -> np.ndarray:
    """Return which of sorted ranks occur more than once."""
    same = starts[1:] == starts[:-1]
    shared: np.ndarray = np.concatenate([[False], same]) | np.concatenate([same, [False]])
    return shared
