"""Sums and products of float32 vectors have the order that is written down."""

import numpy as np
import pytest

from squeeze.numerics import vectors
from squeeze.numerics.jit import kernel


@kernel
def products(a, b, out):
    out[0] = vectors.dot(a, 0, b, 0, a.size)


@kernel
def matrix(y, w, x):
    vectors.accumulate(y, 0, w, 0, w.shape[1], x, 0, 1, w.shape[0], w.shape[1])


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


@pytest.mark.parametrize("shape", [(3, 16), (5, 64), (7, 208)])
def test_a_product_with_a_matrix_adds_rows_in_order(shape):
    generator = np.random.default_rng(1)
    w, x = generator.standard_normal(shape).astype(np.float32), generator.standard_normal(shape[0]).astype(np.float32)
    expected = np.ones(shape[1], np.float32)
    for r in range(shape[0]):
        expected = expected + x[r] * w[r]
    y = np.ones(shape[1], np.float32)
    matrix(y, w, x)
    assert np.array_equal(y, expected)
