"""Integers are stored as planes, and come back."""

import numpy as np
import pytest

from squeeze.codecs import package_data

TYPES = [np.dtype(dtype) for name, dtype in package_data.TYPES.items() if name[0] in "IU"]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(7,), (0,), (3, 5), (2, 3, 4)])
def test_planes_come_back(dtype, shape):
    chance = np.random.default_rng(1)
    limits = np.iinfo(dtype)
    values = chance.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    values.flat[:2] = (limits.min, limits.max)[: values.size]
    stored = package_data.planes(values)
    assert stored.dtype == np.uint8 and stored.shape == (dtype.itemsize, *reversed(shape))
    back = package_data.numbers(stored, dtype.type)
    assert back.dtype == dtype and np.array_equal(back, values) and back.flags.c_contiguous


def test_high_bytes_of_small_numbers_are_zeros():
    assert package_data.planes(np.array([[1, -1, 2]], np.int16)).tolist() == [[[2], [1], [4]], [[0], [0], [0]]]
