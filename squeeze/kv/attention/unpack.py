"""Unpacking of codes (kv/codes.py) in Triton, a word of four bytes at a time.

Two codes are masked out of a word at once, one of its lower and one of its upper half. They become mantissas of two
float16 numbers (0x6400 | code is 1024 + code), so that no integer is converted. The codes of a tile of words therefore
come in an order of their own; `column_of` returns the column of each.
"""

import triton
import triton.language as tl

__all__ = ["codes_of", "column_of"]


@triton.jit  # type: ignore[untyped-decorator]
def _half(words, BIT: tl.constexpr, WIDTH: tl.constexpr, UPPER: tl.constexpr, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the code at bit BIT of the lower or UPPER half of each word, plus 1024 in float16."""
    mask: tl.constexpr = (1 << WIDTH) - 1
    both = (words >> BIT) & (mask | mask << 16)
    shift: tl.constexpr = 16 if UPPER else 0
    if dtype == tl.float16:
        return ((both | 0x64006400) >> shift).to(tl.uint16).to(tl.float16, bitcast=True)
    else:
        return (both >> shift).to(tl.uint16).to(dtype)


@triton.jit  # type: ignore[untyped-decorator]
def _plane(words, BIT: tl.constexpr, WIDTH: tl.constexpr, UPPER: tl.constexpr, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the codes of both bytes of a half, [..., 2]."""
    return tl.join(_half(words, BIT, WIDTH, UPPER, dtype), _half(words, BIT + 8, WIDTH, UPPER, dtype))


@triton.jit  # type: ignore[untyped-decorator]
def _planes(  # type: ignore[no-untyped-def]
    words, BIT: tl.constexpr, WIDTH: tl.constexpr, UPPER: tl.constexpr, dtype: tl.constexpr,
    PLANES: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Return PLANES codes of each byte from bit BIT on, [..., 2, 2, ...] with one dimension of 2 for each halving."""
    if PLANES == 1:
        return _plane(words, BIT, WIDTH, UPPER, dtype)
    else:
        even = _planes(words, BIT, WIDTH, UPPER, dtype, PLANES // 2, 2 * STEP)
        odd = _planes(words, BIT + STEP, WIDTH, UPPER, dtype, PLANES // 2, 2 * STEP)
        return tl.join(even, odd)


@triton.jit  # type: ignore[untyped-decorator]
def codes_of(words, FIRST: tl.constexpr, PLANES: tl.constexpr, WIDTH: tl.constexpr, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """Unpack words uint32 [R, W] to the codes of PLANES planes from plane FIRST on, [R, 4 W PLANES] of `dtype`."""
    lower = _planes(words, FIRST * WIDTH, WIDTH, False, dtype, PLANES, WIDTH)
    upper = _planes(words, FIRST * WIDTH, WIDTH, True, dtype, PLANES, WIDTH)
    codes = tl.reshape(tl.join(lower, upper), (words.shape[0], words.shape[1] * 4 * PLANES))
    if dtype == tl.float16:  # after the reshape: Triton 3.9 fails on sm_100 where a matrix product takes one directly
        codes -= tl.full((), 1024.0, tl.float16)
    return codes


@triton.jit  # type: ignore[untyped-decorator]
def column_of(place, FIRST: tl.constexpr, PLANES: tl.constexpr, BYTES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the column, in a row of BYTES bytes, of the code at `place` in the result of `codes_of`."""
    half, plane, byte = place % 2, place // 2 % PLANES, place // (2 * PLANES) % 2
    return (FIRST + plane) * BYTES + place // (4 * PLANES) * 4 + 2 * half + byte
