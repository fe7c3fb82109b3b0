"""Numbers in the bytes of images, for compiled code."""

import numpy as np

from squeeze.numerics.jit import inline

__all__ = ["big", "long", "put", "put_big", "word"]


@inline
def word(data, at):
    """Return the 4 bytes at a place as a number, the lowest byte first."""
    return (
        np.int64(data[at]) | np.int64(data[at + 1]) << 8 | np.int64(data[at + 2]) << 16 | np.int64(data[at + 3]) << 24
    )


@inline
def long(data, at):
    """Return the 8 bytes at a place as a signed number, the lowest byte first."""
    return word(data, at) | word(data, at + 4) << 32


@inline
def big(data, at):
    """Return the 4 bytes at a place as a number, the highest byte first."""
    return (
        np.int64(data[at]) << 24 | np.int64(data[at + 1]) << 16 | np.int64(data[at + 2]) << 8 | np.int64(data[at + 3])
    )


@inline
def put(data, at, value, size):
    """Write the low bytes of a number, the lowest one first."""
    for i in range(size):
        data[at + i] = np.uint8(value >> 8 * i & 255)


@inline
def put_big(data, at, value):
    """Write the low 4 bytes of a number, the highest one first."""
    for i in range(4):
        data[at + i] = np.uint8(value >> (24 - 8 * i) & 255)
