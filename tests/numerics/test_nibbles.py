"""Products of pairs with weights of 4 bits compared with int64."""

import numpy as np
import pytest

from squeeze.numerics import nibbles, quads
from squeeze.numerics.exact import CHUNK
from squeeze.numerics.jit import kernel
from tests.makers.integers import codes, integers


def test_weights_are_packed_by_nibbles():
    matrix = codes((48, 24), 4, 1)
    packed = nibbles.pack(matrix)
    assert packed.shape == (3, 3, 16, 2)
    assert packed[2, 1, 5, 1] >> 8 & 15 == (int(matrix[37, 8 + 2 * 2 + 1]) + 15) // 2


@kernel
def multiply(activations, weights, outputs, inputs, out):
    nibbles.multiply(activations, weights, outputs, inputs, out)


@pytest.mark.parametrize("panels", [1, 3, 4, 9])
@pytest.mark.parametrize("inputs", [8, 40, CHUNK])
@pytest.mark.parametrize("sign", [0, 1, -1])
def test_sums_are_exact(panels, inputs, sign):
    """Only the results are written."""
    matrix = codes((16 * panels, inputs), 4, panels)
    row = integers((inputs,), quads.TOP, inputs, "any", np.int16)
    if sign:
        matrix[...], row[...] = 15, quads.TOP * sign
    out = np.full(16 * panels + 5, 7, np.int32)
    multiply(row, nibbles.pack(matrix).view(np.uint8).ravel(), 16 * panels, inputs, out)
    assert np.array_equal(out[:-5], matrix.astype(np.int64) @ row.astype(np.int64))
    assert (out[-5:] == 7).all()
