"""Rotations by Hadamard matrices compared with the matrices."""

import numpy as np
import pytest

from squeeze.numerics import rotation
from squeeze.numerics.jit import kernel


@kernel
def rotate_sums(x, block):
    rotation.rotate_sums(x, block)


def matrix(size: int) -> np.ndarray:
    found = np.ones((1, 1))
    while len(found) < size:
        found = np.block([[found, found], [found, -found]])
    return found


def test_a_block_is_the_largest_power_of_two_that_divides_the_size():
    assert [rotation.block_of(n) for n in (1, 7, 6, 576, 1536, 4096)] == [1, 1, 2, 64, 512, 512]


@pytest.mark.parametrize("block", [1, 2, 8, 16, 64, 512])
def test_rotations_are_those_of_hadamard_matrices(block):
    x = np.random.default_rng(block).normal(size=(3, 3 * block)).astype(np.float32)
    wanted = (x.reshape(3, 3, block) @ matrix(block)).reshape(x.shape)
    np.testing.assert_allclose(rotation.rotate(x, block), wanted / block**0.5, atol=2e-5)
    np.testing.assert_allclose(rotation.rotate_rows(x.T, block), wanted.T / block**0.5, atol=2e-5)
    np.testing.assert_allclose(rotation.rotate(rotation.rotate(x, block), block), x, atol=1e-5)
    row = x[1].copy()
    rotate_sums(row, block)
    assert np.array_equal(row * rotation.factor(block), rotation.rotate(x, block)[1])  # to the last bit


def test_integers_are_exact():
    """Sums of integers leave no doubt about which numbers meet which."""
    x = np.random.default_rng(1).integers(-99, 99, 1536).astype(np.float32)
    row = x.copy()
    rotate_sums(row, 512)
    assert np.array_equal(row, (x.reshape(3, 512) @ matrix(512)).ravel())
