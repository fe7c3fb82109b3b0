"""Values whose sign trails, so that their exponents lead."""

import numpy as np

from squeeze.numerics.jit import inline


@inline
def rotated(value, width):
    """The highest bit of a `width`-bit value moved below its lowest, where `width` is not 0."""
    wide = np.uint64(value)
    if width == np.uint64(0):
        return wide
    every = np.uint64(0xFFFFFFFFFFFFFFFF) >> (np.uint64(64) - width)
    return ((wide << np.uint64(1)) | (wide >> (width - np.uint64(1)))) & every


@inline
def turned_back(value, width):
    """Undo `rotated`."""
    if width == 0:
        return value
    return (value >> np.uint64(1)) | (value << np.uint64(width - 1))
