"""Vector code of mixers gives what the loops that it stands for give, to the bit."""

import numpy as np
import pytest

from squeeze.numerics import mixer_vectors, vectors
from squeeze.numerics.jit import kernel

LIMIT = np.float32(15.9)


@kernel
def products(matrix, rows, count, vector, out):
    mixer_vectors.products(matrix, rows, count, vector, vector.size, out, LIMIT)


@kernel
def product(matrix, row, vector):
    return vectors.dot(matrix, row * vector.size, vector, 0, vector.size)


@kernel
def centre(values, groups):
    mixer_vectors.centre(values, groups, np.float32(2))


@pytest.mark.parametrize("count", [1, 3, 4, 7])
@pytest.mark.parametrize("size", [16, 176])
def test_several_products_are_those_of_one_by_one(count, size):
    rng = np.random.default_rng(count * size)
    vector = (rng.standard_normal(size) * 3).astype(np.float32)
    matrix = rng.standard_normal(9 * size).astype(np.float32)
    rows, out = rng.permutation(9), np.full(9, 7, np.float32)
    products(matrix, rows, count, vector, out)
    one_by_one = np.array([product(matrix, row, vector) for row in rows[:count]], np.float32)
    assert np.array_equal(out[:count], one_by_one.clip(-LIMIT, LIMIT))
    assert (out[count:] == 7).all()


def test_products_are_clamped():
    out = np.zeros(4, np.float32)
    rows = np.array([0, 1, 2, 0])
    products(np.repeat(np.float32([1, -1, 0]), 16), rows, 4, np.full(16, 5, np.float32), out)
    assert out.tolist() == [LIMIT, -LIMIT, 0, LIMIT]


@pytest.mark.parametrize("groups", [[0, 2, 5, 9], [0, 3, 3, 3], [0, 0, 1, 1], [0, 0, 0, 0]])
def test_means_of_known_values_are_subtracted_and_appended(groups):
    n, parts = groups[-1], len(groups) - 1
    rng = np.random.default_rng(n)
    values = rng.standard_normal((n + 1 + parts, 4)).astype(np.float32)
    values[:n][rng.random((n, 4)) < 0.3] = 0
    known, sums, counts = values[:n] != 0, np.zeros((parts, 4), np.float32), np.zeros((parts, 4), np.float32)
    for part in range(parts):
        for i in range(groups[part], groups[part + 1]):
            sums[part] += values[i]
            counts[part] += known[i]
    total, count = np.zeros(4, np.float32), np.zeros(4, np.float32)
    for part in range(parts):
        total, count = total + sums[part], count + counts[part]
    mean = total / np.maximum(count, 1)
    means = (sums / np.maximum(counts, 1) - mean) * np.float32(2)
    expected = np.concatenate([np.where(known, values[:n] - mean, 0), [mean * np.float32(2)], means])
    flat = values.ravel().copy()
    centre(flat, np.array(groups))
    assert np.array_equal(flat.reshape(-1, 4), expected.astype(np.float32))
