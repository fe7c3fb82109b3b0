"""Products in fours of bytes beside int64, where the processor has them."""

import numpy as np
import pytest

from squeeze.numerics import quads
from squeeze.numerics.exact import CHUNK
from squeeze.numerics.jit import kernel
from tests.makers.integers import integers


def test_packing():
    matrix = integers((35, 22), 127, 1, "any", np.int8)
    packed = quads.pack(matrix)
    assert packed.shape == (3, 6, 16, 4)
    assert packed[34 // 16, 21 // 4, 34 % 16, 21 % 4] == matrix[34, 21]
    assert np.count_nonzero(packed) == np.count_nonzero(matrix)


@kernel
def split(row, high, low):
    quads.split(row, high, low)


def test_splitting():
    row = np.array([-32768, -32767, -256, -1, 0, 1, 255, 256, 32767], np.int16)
    high, low = np.zeros((2, row.size), np.uint8)
    split(row, high, low)
    assert np.array_equal((high.astype(np.int64) - 128) * 256 + low, row)


if quads.AVAILABLE:

    @kernel
    def multiply(high, low, weights, offsets, out):
        quads.multiply(high, low, weights, offsets, out)


@pytest.mark.skipif(not quads.AVAILABLE, reason="the processor has no products in fours of bytes")
@pytest.mark.parametrize("panels", [1, 2, 3, 4, 7, 8, 9, 15, 31])
@pytest.mark.parametrize("inputs", [4, 20, CHUNK])
@pytest.mark.parametrize("sign", [0, 1, -1])
def test_sums_are_exact(panels, inputs, sign):
    """The largest sums wrap on their way, and do not in the end. Nothing beside the results is written."""
    matrix = integers((16 * panels, inputs), 127, panels, "any", np.int8)
    row = integers((inputs,), 32767, inputs, "any", np.int16)
    if sign:
        matrix[...], row[...] = 127, 32767 * sign
    high, low = np.zeros((2, inputs), np.uint8)
    split(row, high, low)
    out = np.full(16 * panels + 5, 7, np.int32)
    multiply(high, low, quads.pack(matrix), quads.offsets(matrix), out)
    assert np.array_equal(out[:-5], matrix.astype(np.int64) @ row.astype(np.int64))
    assert (out[-5:] == 7).all()
