"""Packed weights, and integer products of a row and panels of any number, compared with int64."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from squeeze.numerics import tiles
from squeeze.numerics.exact import CHUNK
from squeeze.numerics.jit import kernel
from squeeze.numerics.tiles import pack
from tests.makers.integers import integers


@kernel
def multiply(activations, weights, outputs, inputs, out):
    tiles.multiply(activations, weights, outputs, inputs, out)


@settings(max_examples=40)
@given(st.integers(1, 50), st.integers(1, 70))
def test_weights_are_packed_in_pairs(outputs, inputs):
    matrix = integers((outputs, inputs), 127, outputs * inputs, "any", np.int8)
    packed = pack(matrix)
    assert packed.shape == (-(-outputs // 16), -(-inputs // 2), 16, 2)
    n, k = np.indices(matrix.shape)
    assert np.array_equal(packed[n // 16, k // 2, n % 16, k % 2], matrix)
    assert np.count_nonzero(packed) == np.count_nonzero(matrix)


@pytest.mark.parametrize("panels", [1, 3, 4, 9])
@pytest.mark.parametrize("inputs", [2, 40, CHUNK])
@pytest.mark.parametrize("kind", ["any", "tops", "bottoms"])
def test_sums_are_exact(panels, inputs, kind):
    """Only the results are written."""
    matrix = integers((16 * panels, inputs), 127, panels, "tops" if kind == "bottoms" else kind, np.int8)
    row = integers((inputs,), 32767, inputs, kind, np.int16)
    out = np.full(16 * panels + 5, 7, np.int32)
    multiply(row, pack(matrix).view(np.uint8).ravel(), 16 * panels, inputs, out)
    assert np.array_equal(out[:-5], matrix.astype(np.int64) @ row.astype(np.int64))
    assert (out[-5:] == 7).all()
