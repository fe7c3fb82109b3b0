"""Products in fours of bytes compared with int64, where the processor has them."""

import numpy as np
import pytest

from squeeze.numerics import quads
from squeeze.numerics.exact import CHUNK
from squeeze.numerics.jit import kernel
from tests.makers.integers import codes, integers


def test_bytes_are_packed_in_fours():
    matrix = codes((144, 24), 8, 1)
    packed = quads.pack(matrix, 8)
    first, last = packed[: 128 * 24].reshape(6, 8, 16, 4), packed[128 * 24 :].reshape(6, 1, 16, 4)
    assert first[21 // 4, 34 // 16, 34 % 16, 21 % 4] == int(matrix[34, 21]) + 128
    assert last[21 // 4, 0, 135 - 128, 21 % 4] == int(matrix[135, 21]) + 128


def test_four_bits_are_packed_in_fours():
    matrix = codes((96, 24), 4, 1)
    packed = quads.pack(matrix, 4)
    first, last = packed[: 64 * 12].reshape(3, 4, 16, 4), packed[64 * 12 :].reshape(3, 2, 16, 4)
    assert first[2, 34 // 16, 34 % 16, 1] % 16 == (int(matrix[34, 17]) + 15) // 2
    assert last[2, 1, 85 % 16, 1] // 16 == (int(matrix[85, 21]) + 15) // 2


@kernel
def split(row, high, low):
    return quads.split(row, high, low)


def test_activations_are_split_into_bytes():
    row = np.array([-quads.TOP, -256, -129, -128, -1, 0, 1, 127, 128, 255, 256, quads.TOP], np.int16)
    high, low = np.zeros((2, row.size), np.int8)
    assert split(row, high, low) == row.sum()
    assert np.array_equal(high.astype(np.int64) * 256 + low, row)


if quads.AVAILABLE:

    @kernel
    def multiply(high, low, total, weights, bits, outputs, inputs, out):
        quads.multiply(high, low, total, weights, bits, outputs, inputs, out)


@pytest.mark.skipif(not quads.AVAILABLE, reason="the processor has no products in fours of bytes")
@pytest.mark.parametrize("panels", [1, 2, 3, 4, 7, 8, 9, 15, 31])
@pytest.mark.parametrize("inputs", [8, 40, CHUNK])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("sign", [0, 1, -1])
def test_sums_are_exact(panels, inputs, bits, sign):
    """Check that the largest sums wrap on the way but not at the end, and that only the results are written."""
    matrix = codes((16 * panels, inputs), bits, panels)
    row = integers((inputs,), quads.TOP, inputs, "any", np.int16)
    if sign:
        matrix[...], row[...] = matrix.max(), quads.TOP * sign
    high, low = np.zeros((2, inputs), np.int8)
    total = split(row, high, low)
    out = np.full(16 * panels + 5, 7, np.int32)
    multiply(high, low, total, quads.pack(matrix, bits), bits, 16 * panels, inputs, out)
    assert np.array_equal(out[:-5], matrix.astype(np.int64) @ row.astype(np.int64))
    assert (out[-5:] == 7).all()
