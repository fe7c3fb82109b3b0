"""Relative maps: the probability of a bit by how far the byte that it decides about is from a prediction.

An entry belongs to a context of the sample, the place of the bit, and a distance from the prediction. The distance is
that of the least byte that agrees with the bits before and has a one there. Maps begin as if errors had a logistic
distribution.
"""

import numpy as np

from squeeze.numerics.logistic import SQUASH

__all__ = ["BIN", "BINS", "LEVELS", "START"]

BINS, LEVELS = 256, 64  # distances, and contexts
_START_COUNT = 20  # bits that the first value counts for
_SCALES = np.array([6, 10, 14, 18, 26, 34, 42, 58, 74, 106, 138, 202, 266, 394, 600, 1000])  # of errors, in sixteenths


def _bins() -> np.ndarray:
    """Return int64 [8192]: the bin of a distance in sixteenths, plus 4096: fine near 0, coarse far from it."""
    distances = np.arange(-4096, 4096)
    size = np.abs(distances)
    steps = np.where(size < 128, size // 4, np.where(size < 512, 32 + (size - 128) // 16, 56 + (size - 512) // 64))
    return np.where(distances < 0, 127 - steps, 128 + steps).clip(0, BINS - 1).astype(np.int64)


def _start() -> np.ndarray:
    """Return uint32 [LEVELS * 8 * BINS]: the first entries of a map."""
    places = [np.flatnonzero(k == BIN) for k in range(BINS)]
    middle = np.array([(at[0] + at[-1]) // 2 - 4096 if at.size else 0 for at in places], np.int64)
    half = 16 << np.arange(8)[:, None]
    below, within, above = (
        SQUASH[(2048 + 128 * distance // _SCALES[:, None, None]).clip(0, 4096)]
        for distance in (middle - half, middle + 0 * half, middle + half)
    )
    ones = ((above - within + 1) << 22) // (above - below + 2)
    entries = ones.clip(1 << 8, (1 << 22) - (1 << 8)) << 10 | _START_COUNT
    return np.repeat(entries.astype(np.uint32), LEVELS // _SCALES.size, axis=0).ravel()


BIN = _bins()
START = _start()
