"""Block-diagonal Hadamard rotations in exact arithmetic: sums and differences of pairs in one order.

A rotation spreads outliers over a block, so that the values can be rounded to 8 bits (QuaRot: Ashkboos et al. 2024,
arXiv:2404.00456). Blocks are Sylvester matrices, symmetric and, up to a factor, their own inverse.
"""

import math
from typing import Any

import numpy as np

from squeeze.numerics.codegen import intrinsic, ir, types
from squeeze.numerics.jit import inline, kernel

_MOST = 512  # numbers of a block
_VECTOR = 16


def block_of(size: int) -> int:
    """Return the size of a block: the largest power of two that divides `size`, at most 512."""
    return min(size & -size, _MOST)


def factor(block: int) -> np.float32:
    """Return the factor that makes the sums of a block a rotation."""
    return np.float32(1 / math.sqrt(block))


@intrinsic
def _spread(typingctx, array, offset):
    """Replace 16 float32 from `offset` on by their sums and differences at distances 1, 2, 4 and 8."""

    def codegen(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        floats, words = (ir.VectorType(kind, _VECTOR) for kind in (ir.FloatType(), ir.IntType(32)))
        address = builder.bitcast(builder.gep(data, [arguments[1]]), floats.as_pointer())
        x: Any = builder.load(address, align=4)
        for distance in (1, 2, 4, 8):
            mask = ir.Constant(words, [i ^ distance for i in range(_VECTOR)])
            partner = builder.shuffle_vector(x, ir.Constant(floats, ir.Undefined), mask)
            signs = ir.Constant(words, [0x80000000 if i & distance else 0 for i in range(_VECTOR)])
            x = builder.fadd(partner, builder.bitcast(builder.xor(builder.bitcast(x, words), signs), floats))
        builder.store(x, address, align=4)
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


@inline
def rotate_sums(x, block):
    """Rotate float32 x [n] by blocks in place, without the factor."""
    half = 1
    if block >= _VECTOR:
        for start in range(0, x.size, _VECTOR):
            _spread(x, start)
        half = _VECTOR
    while half < block:
        for start in range(0, x.size, 2 * half):
            low, high = x[start : start + half], x[start + half : start + 2 * half]
            for i in range(half):
                a, b = low[i], high[i]
                low[i], high[i] = a + b, a - b
        half *= 2


def rotate(values: np.ndarray, block: int) -> np.ndarray:
    """Rotate each block of the last axis of float32 [..., n], with the same result on every machine."""
    x = np.array(values, np.float32, order="C")
    _rotate(x.reshape(-1), block, factor(block))
    return x


def rotate_rows(values: np.ndarray, block: int) -> np.ndarray:
    """Rotate each block of the first axis of float32 [n, K]."""
    x = np.array(values, np.float32, order="C")
    _rotate_rows(x, block, factor(block))
    return x


@kernel
def _rotate(x, block, scale):
    """Rotate float32 x [n] by blocks in place."""
    for start in range(0, x.size // block * block, block):
        part = x[start : start + block]
        rotate_sums(part, block)
        for i in range(block):
            part[i] *= scale


@kernel
def _rotate_rows(x, block, scale):
    """Rotate float32 x [n, K] by blocks of rows in place."""
    for start in range(0, x.shape[0] // block * block, block):
        half = 1
        while half < block:
            for first in range(start, start + block, 2 * half):
                for row in range(first, first + half):
                    low, high = x[row], x[row + half]
                    for i in range(low.size):
                        a, b = low[i], high[i]
                        low[i], high[i] = a + b, a - b
            half *= 2
        for row in range(start, start + block):
            for i in range(x.shape[1]):
                x[row, i] *= scale
