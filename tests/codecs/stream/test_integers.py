"""Coding of integer matrices, which dictionaries store."""

import numpy as np
from hypothesis import given, strategies as st

from squeeze.codecs.stream import integers


@given(st.lists(st.lists(st.integers(-(1 << 39), 1 << 39), min_size=3, max_size=3), min_size=1, max_size=20))
def test_matrices_of_integers_come_back(rows):
    matrix = np.array(rows, np.int64)
    assert np.array_equal(integers.decode(integers.encode(matrix), matrix.shape), matrix)


def test_zeros_cost_next_to_nothing():
    assert len(integers.encode(np.zeros((100, 100), np.int64))) < 100
