"""Frequencies of the entropy coder."""

import numpy as np
from hypothesis import given, strategies as st

from squeeze.codecs.tensors import rans


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=256).filter(any), st.integers(8, 13))
def test_frequencies_add_up_and_none_is_lost(counts, precision):
    counts = np.array(counts, np.int64)
    frequencies = np.zeros(counts.size, np.int64)
    rans.quantise(counts, precision, frequencies)
    assert frequencies.sum() == 1 << precision
    assert np.array_equal(frequencies > 0, counts > 0)
