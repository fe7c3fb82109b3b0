"""numerics/tensors.py in Triton: the same numbers to the bit, as long as kernels are launched with `EXACT`.

Rounding to an integer adds and subtracts 1.5 * 2^23, which is right up to 2^22. Quotients and roots are those that are
rounded to nearest. Sums over a block are of integers.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["EXACT", "exp_negative", "inverse_of_rms", "largest_of", "nearest", "product_of", "squares_of", "warps"]

EXACT = {"enable_fp_fusion": False}
_PER_WARP = 512  # numbers that a warp holds of a row


def warps(block: int) -> int:
    """For a program that holds a row of `block` numbers."""
    return int(min(max(block // _PER_WARP, 1), 16))


@triton.jit  # type: ignore[untyped-decorator]
def nearest(x):  # type: ignore[no-untyped-def]
    """Of magnitude at most 2^22, halves to even."""
    return (x + 12582912.0) - 12582912.0


@triton.jit  # type: ignore[untyped-decorator]
def largest_of(x):  # type: ignore[no-untyped-def]
    """Of the magnitudes along the last axis, and 1e-20."""
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
    """1 / sqrt(mean(x^2) + epsilon) as float32, of the sum int64 of the squares of SIZE numbers as `squares_of` has
    them, the largest magnitude, and epsilon float32."""
    unit = largest.to(tl.float64) * (1.0 / 2097152.0)
    mean = squares.to(tl.float64) * (unit * unit) / SIZE
    return (1.0 / tl.sqrt(mean + epsilon)).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def squares_of(x, largest):  # type: ignore[no-untyped-def]
    """int64: the squares of integers of 21 bits that stand for numbers x, the largest of which is given."""
    integers = nearest(x * tl.div_rn(2097152.0, largest)).to(tl.int64)
    return integers * integers


@triton.jit  # type: ignore[untyped-decorator]
def product_of(sums, row_scale, columns, bias, column, present, BIASED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Numbers of a row of a Product: from where its sums begin, at these columns; and its bias, or 0."""
    value = tl.load(sums + column, mask=present, other=0).to(tl.float32)
    value = value * row_scale * tl.load(columns + column, mask=present, other=0)
    added = tl.zeros_like(value)
    if BIASED:
        added = tl.load(bias + column, mask=present, other=0)
    return value, added
