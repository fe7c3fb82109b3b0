"""Sums and products of float32 vectors have the order that is written down."""

import numpy as np
import pytest

from squeeze.numerics import exact, vectors
from squeeze.numerics.jit import kernel


@kernel
def products(a, b, out):
    out[0] = vectors.dot(a, 0, b, 0, a.size)


@pytest.mark.parametrize("size", [16, 48, 160])
def test_sums_have_the_order_that_is_written_down(size):
    a, b = np.random.default_rng(size).standard_normal((2, size)).astype(np.float32)
    total = np.zeros(16, np.float32)
    for i in range(0, size, 16):
        total = total + a[i : i + 16] * b[i : i + 16]
    while total.size > 1:
        total = total[: total.size // 2] + total[total.size // 2 :]
    found = np.zeros(1, np.float32)
    products(a, b, found)
    assert found[0] == total[0]


@kernel
def exp_shares(x, top, unit, factors):
    return vectors.exp_shares(x, 0, x.size, top, unit, factors, 0)


@kernel
def each(x, top, unit, out):
    total = np.int32(0)
    for i in range(x.size):
        out[i] = exact.exp_negative(x[i] - top)
        total += exact.to_integer(out[i] * unit)
    return total


def test_shares_are_those_of_exact_arithmetic():
    x = np.concatenate([np.random.default_rng(1).normal(size=94) * 9, [-1e30, -200]]).astype(np.float32)
    factors, shares = np.linspace(0.5, 2, x.size, dtype=np.float32), np.empty_like(x)
    top, unit = x.max(), np.float32(1 << 20)
    total = each(x, top, unit, shares)
    assert exp_shares(x, top, unit, factors) == total
    assert np.array_equal(x, shares * factors)
