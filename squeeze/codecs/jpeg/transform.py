"""Pixels from the coefficients of JPEG blocks, and back.

The way to pixels is that of the slow integer decoder of the Independent JPEG Group, which nearly all programs use. What
it computes is a product with a matrix of integers for columns and one for rows, each rounded. So every result is known
exactly. The way back is the discrete cosine transform (ITU-T T.81, A.3.3) in integers.
"""

import math

import numpy as np

from squeeze.numerics.jit import inline, kernel

__all__ = ["FINE", "INVERSE", "fill_plane", "forward", "inverse", "wide_of"]

_HALF = (  # the first four of each row; the others mirror them, with the other sign in odd rows
    (8192, 8192, 8192, 8192),
    (11363, 9633, 6437, 2260),
    (10703, 4433, -4433, -10703),
    (9633, -2259, -11362, -6436),
    (8192, -8192, -8192, 8192),
    (6437, -11362, 2261, 9633),
    (4433, -10704, 10704, -4433),
    (2260, -6436, 9633, -11363),
)
INVERSE = np.array([row + tuple((-1) ** k * x for x in row[::-1]) for k, row in enumerate(_HALF)], np.int64)
FORWARD = np.array(
    [
        [round(4096 * math.cos((2 * n + 1) * k * math.pi / 16) * (1 if k else math.sqrt(0.5))) for n in range(8)]
        for k in range(8)
    ],
    np.int64,
)
FINE = 256  # parts of a coefficient


@inline
def inverse(block, steps, matrix, work, pixels):
    """Compute the pixels of a block, before they are limited to 0..255.

    Args:
        block: [64] coefficients, in rows.
        steps: int64 [64], their quantisation steps.
        matrix: INVERSE.
        work: int64 [64].
        pixels: int64 [64], which is written.
    """
    for x in range(8):
        for n in range(8):
            total = np.int64(1 << 10)
            for k in range(8):
                total += block[8 * k + x] * steps[8 * k + x] * matrix[k, n]
            work[8 * n + x] = total >> 11
    for y in range(8):
        for n in range(8):
            total = np.int64(1 << 17)
            for k in range(8):
                total += work[8 * y + k] * matrix[k, n]
            pixels[8 * y + n] = (total >> 18) + 128


@inline
def forward(pixels, matrix, work, block):
    """Compute the coefficients of int64 [64] `pixels` in 256ths, as int64 [64] `block`; `matrix` is FORWARD."""
    for y in range(8):
        for k in range(8):
            total = np.int64(0)
            for n in range(8):
                total += (pixels[8 * y + n] - 128) * matrix[k, n]
            work[8 * y + k] = total
    for k in range(8):
        for x in range(8):
            total = np.int64(1 << 17)
            for n in range(8):
                total += work[8 * n + x] * matrix[k, n]
            block[8 * k + x] = total >> 18


@kernel
def fill_plane(plane, coefficients, steps, top, left, matrix, work):
    """Compute the pixels of a plane from its blocks.

    Args:
        plane: uint8 [height, width], which is written.
        coefficients: int16 [blocks, 64].
        steps: int64 [64].
        top, left: rows and columns of the first blocks that the plane does not have, 0 to 7.
        matrix: INVERSE.
        work: int64 [2, 64].
    """
    height, width = plane.shape
    wide = (width + left + 7) // 8
    for i in range((height + top + 7) // 8 * wide):
        inverse(coefficients[i], steps, matrix, work[0], work[1])
        row, column = i // wide * 8 - top, i % wide * 8 - left
        for k in range(64):
            y, x = row + k // 8, column + k % 8
            if 0 <= y < height and 0 <= x < width:
                plane[y, x] = min(max(work[1, k], 0), 255)


def wide_of(length: int, cut: int) -> int:
    """Return the blocks across or down a plane: its pixels, and those of the first block that it does not have."""
    return (length + cut + 7) // 8
