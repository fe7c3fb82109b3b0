"""The arithmetic of exact inference: the same integers on every machine. docs/exactness.md states the contract.

Sums of more than one term are sums of integers. Floating-point operations are elementwise, and only those that IEEE 754
defines. Activations are integers with one float32 scale per row; weights and cached keys and values are 8-bit integers.
int8.py and quads.py multiply them, so exactness costs no speed.
"""

import numpy as np

from squeeze.numerics.frequencies import GROUP
from squeeze.numerics.jit import inline, kernel
from squeeze.numerics.trie import FREQUENCY_BITS

_ROUND = np.float32(12582912.0)  # 1.5 * 2^23: adding it rounds to an integer, half to even
_LEAST = np.float32(1e-20)


@inline
def _magnitude_bits(x):
    """Return an integer that grows with |x|, so that the maximum is one of integers, which vectorises."""
    return np.int32(np.float32(x).view(np.int32) & np.int32(0x7FFFFFFF))


@inline
def to_integer(x):
    """Return the nearest int32 of a float32 within 2^22, rounding half to even."""
    return np.int32(np.float32(x + _ROUND).view(np.int32) - np.int32(0x4B400000))


@inline
def magnitude(x):
    """Return the largest |x| of a float32 vector: NaN if there is one."""
    bits = np.int32(0)
    for i in range(x.size):
        bits = np.int32(max(bits, _magnitude_bits(x[i])))
    return np.int32(bits).view(np.float32)


@inline
def quantise(x, top, out):
    """Write round(x / scale) to `out`, at most `top` in magnitude, and return the float32 scale."""
    largest = max(magnitude(x), _LEAST)
    inverse = np.float32(top) / largest
    for i in range(x.size):
        out[i] = to_integer(x[i] * inverse)
    return largest / np.float32(top)


@inline
def quantise_summed(x, top, out):
    """Quantise as `quantise` does, and return (float32 scale, int32 sum of the integers)."""
    scale, total = quantise(x, top, out), np.int32(0)
    for i in range(x.size):
        total = np.int32(total + np.int32(out[i]))
    return scale, total


@inline
def normalise(x, epsilon, out):
    """Write x / sqrt(mean(x^2) + epsilon) to `out` as 8-bit integers, and return (float32 scale, int32 sum)."""
    scale, total = quantise_summed(x, 127, out)
    return scale * rms_inverse(x, epsilon), total


@inline
def _ordered(bits):
    """Map the bits of a float32 to an int32 of the same order. The map is its own inverse."""
    return np.int32(bits ^ np.int32((bits >> 31) & np.int32(0x7FFFFFFF)))


@inline
def maximum(x):
    """Return the largest float32 of an array, compared as integers of the same order."""
    best = np.int32(-0x7FFFFFFF)
    for i in range(x.size):
        best = np.int32(max(best, _ordered(np.float32(x[i]).view(np.int32))))
    return np.int32(_ordered(best)).view(np.float32)


@inline
def _maximum_of_sums(x, y):
    """Return the largest float32 of x + y."""
    best = np.int32(-0x7FFFFFFF)
    for i in range(x.size):
        best = np.int32(max(best, _ordered(np.float32(x[i] + y[i]).view(np.int32))))
    return np.int32(_ordered(best)).view(np.float32)


@inline
def rms_inverse(x, epsilon):
    """Return 1 / sqrt(mean(x^2) + epsilon), float32. The mean is one of squares of 21-bit integers."""
    top = np.int32(0)
    for i in range(x.size):
        top = np.int32(max(top, _magnitude_bits(x[i])))
    largest = max(np.int32(top).view(np.float32), _LEAST)
    inverse = np.float32(1 << 21) / largest
    total = np.int64(0)
    for i in range(x.size):
        q = np.int64(to_integer(x[i] * inverse))
        total += q * q
    unit = np.float64(largest) / np.float64(1 << 21)
    mean = np.float64(total) * (unit * unit) / np.float64(x.size)
    return np.float32(np.float64(1.0) / np.sqrt(mean + np.float64(epsilon)))


@inline
def exp_negative(x):
    """Return e^x of a float32 x <= 0: a power of two times a polynomial on [-1/2, 1/2]. Below -87 it is e^-87."""
    t = max(x, np.float32(-87.0)) * np.float32(1.4426950408889634)
    rounded = t + _ROUND
    k = np.int32(np.float32(rounded).view(np.int32) - np.int32(0x4B400000 - 127))
    r = t - (rounded - _ROUND)
    p = np.float32(1.5403530e-4)
    p = p * r + np.float32(1.3333558e-3)
    p = p * r + np.float32(9.6181291e-3)
    p = p * r + np.float32(5.5504109e-2)
    p = p * r + np.float32(2.4022651e-1)
    p = p * r + np.float32(6.9314718e-1)
    p = p * r + np.float32(1.0)
    return p * np.int32(k << 23).view(np.float32)


@inline
def sigmoid(x):
    """Return 1 / (1 + e^-x) of a float32."""
    e = exp_negative(-abs(x))
    return (np.float32(1) if x >= np.float32(0) else e) / (np.float32(1) + e)


@inline
def cumulate(logits, bias, cdf, r):
    """Write the cumulative frequencies of softmax(logits + bias) to row r of `cdf`. Every leaf's frequency is at least
    1.
    """
    top, sums, parts, total = _maximum_of_sums(logits, bias), cdf.sums[r], cdf.parts[r], np.int64(0)
    sums[0] = total
    for i in range(logits.size):
        parts[i] = exp_negative(logits[i] + bias[i] - top) * np.float32(1 << FREQUENCY_BITS)
    for group in range(sums.size - 1):
        some = parts[group * GROUP : min(group * GROUP + GROUP, parts.size)]
        total += some.size
        for i in range(some.size):
            total += np.int64(some[i])
        sums[group + 1] = total


@kernel
def cumulate_row(logits, leaves, bias, picked, cdf, r):
    """Write the cumulative frequencies of the tokens `leaves` to row r of `cdf`.

    Args:
        logits: float32 [vocabulary]. A logit that is not finite counts as -1e30.
        leaves: int32 [leaves], the tokens.
        bias: float32 [leaves], added to the logits.
        picked: float32 [leaves], scratch memory.
        cdf: The frequencies.
        r: The row.
    """
    for i in range(leaves.size):
        value = logits[leaves[i]]
        picked[i] = value if abs(value) < np.float32(1e30) else np.float32(-1e30)
    cumulate(picked, bias, cdf, r)
