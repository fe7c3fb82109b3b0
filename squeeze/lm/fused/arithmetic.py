"""The arithmetic of numerics/tensors.py in Triton, to the bit if kernels are launched with `EXACT`.

Rounding adds and subtracts 1.5 * 2^23, which is right up to 2^22. Quotients and roots round to nearest. Sums over a
block are of integers.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["EXACT", "exp_negative", "inverse_of_rms", "largest_of", "nearest", "product_of", "squares_of", "warps"]

EXACT = {"enable_fp_fusion": False}
_PER_WARP = 512  # numbers of a row per warp


def warps(block: int) -> int:
    """Return the warps of a program that holds a row of `block` numbers."""
    return int(min(max(block // _PER_WARP, 1), 16))


@triton.jit  # type: ignore[untyped-decorator]
def nearest(x):  # type: ignore[no-untyped-def]
    """Round numbers of magnitude at most 2^22 to integers, halves to even."""
    return (x + 12582912.0) - 12582912.0


@triton.jit  # type: ignore[untyped-decorator]
def largest_of(x):  # type: ignore[no-untyped-def]
    """Return the largest magnitude along the last axis, at least 1e-20."""
    return tl.maximum(tl.max(tl.abs(x), len(x.shape) - 1), 1e-20)


@triton.jit  # type: ignore[untyped-decorator]
def exp_negative(x):  # type: ignore[no-untyped-def]
    t = tl.maximum(x, -87.0) * 1.4426950408889634
    k = nearest(t)
    r = t - k
    p = r * 1.5403530e-4 + 1.3333558e-3
    p = p * r + 9.6181291e-3
    p = p * r + 5.5504109e-2
    p = p * r + 2.4022651e-1
    p = p * r + 6.9314718e-1
    p = p * r + 1.0
    return p * ((k.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def inverse_of_rms(squares, largest, epsilon, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return 1 / sqrt(mean(x^2) + epsilon), float32.

    Args:
        squares: int64, sum of `squares_of` SIZE numbers.
        largest: their largest magnitude.
        epsilon: float32.
        SIZE: count of the numbers.
    """
    unit = largest.to(tl.float64) * (1.0 / 2097152.0)
    mean = squares.to(tl.float64) * (unit * unit) / SIZE
    return (1.0 / tl.sqrt(mean + epsilon)).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def squares_of(x, largest):  # type: ignore[no-untyped-def]
    """Return squares, int64, of numbers x rounded to 21 bits relative to the largest."""
    integers = nearest(x * tl.div_rn(2097152.0, largest)).to(tl.int64)
    return integers * integers


@triton.jit  # type: ignore[untyped-decorator]
def product_of(sums, row_scale, columns, bias, column, present, BIASED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return some columns of a row of a Product, and its bias there, or 0.

    Args:
        sums: pointer to the row's sums.
        row_scale: the row's scale.
        columns: pointer to the scales of outputs.
        bias: pointer to the bias.
        column: the columns.
        present: mask of columns that exist.
        BIASED: whether there is a bias.
    """
    value = tl.load(sums + column, mask=present, other=0).to(tl.float32)
    value = value * row_scale * tl.load(columns + column, mask=present, other=0)
    added = tl.zeros_like(value)
    if BIASED:
        added = tl.load(bias + column, mask=present, other=0)
    return value, added
