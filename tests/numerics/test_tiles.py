"""Packed weights, and integer products of rows and panels of any number, beside int64."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from squeeze.numerics import tiles
from squeeze.numerics.exact import TOP
from squeeze.numerics.jit import kernel
from squeeze.numerics.tiles import pack, unpack
from tests.makers.integers import integers


@kernel
def narrow_tile(rows, panels, a, a_offset, a_stride, b, b_offset, b_stride, pairs, out, out_offset, out_stride):
    tiles.narrow_tile(rows, panels, a, a_offset, a_stride, b, b_offset, b_stride, pairs, out, out_offset, out_stride)


@kernel
def wide_tile(rows, a, a_offset, a_stride, b, pairs, out):
    tiles.wide_tile(rows, a, a_offset, a_stride, b, pairs, out)


@settings(max_examples=40)
@given(st.integers(1, 50), st.integers(1, 70))
def test_packing(outputs, inputs):
    matrix = integers((outputs, inputs), 127, outputs * inputs, "any", np.int8)
    packed = pack(matrix)
    assert packed.shape == (-(-outputs // 16), -(-inputs // 2), 16, 2)
    assert np.array_equal(unpack(packed, outputs, inputs), matrix)
    n, k = outputs - 1, inputs - 1
    assert packed[n // 16, k // 2, n % 16, k % 2] == matrix[n, k]
    assert np.count_nonzero(packed) == np.count_nonzero(matrix)


@pytest.mark.parametrize("rows", range(1, 14))
@pytest.mark.parametrize(("panels", "pairs"), [(1, 1), (2, 7), (3, 256), (5, 32), (9, 3)])
def test_narrow_tiles_at_offsets(rows, panels, pairs):
    """Rows and panels lie anywhere, and nothing beside the results is written."""
    a, b = (
        integers(40 + rows * (2 * pairs + 6), TOP, 8, "ends", np.int16),
        integers((panels, pairs + 2, 16, 2), 127, 9, "any", np.int8),
    )
    stride = panels * 16 + 5
    out = np.full(7 + rows * stride, -1, np.int32)
    narrow_tile(rows, panels, a, 34, 2 * pairs + 6, b, 64, b[0].size, pairs, out, 7, stride)
    expected = np.full_like(out, -1)
    for r in range(rows):
        row = a[34 + r * (2 * pairs + 6) :][: 2 * pairs].reshape(pairs, 2).astype(np.int64)
        for p in range(panels):
            at = 7 + r * stride + 16 * p
            expected[at : at + 16] = np.einsum("kj,kcj->c", row, b[p, 2 : 2 + pairs].astype(np.int64))
    assert np.array_equal(out, expected)


@pytest.mark.parametrize("rows", range(1, 14))
@pytest.mark.parametrize("pairs", [1, 5, 256])
def test_wide_tiles(rows, pairs):
    a, b = (
        integers((rows, 2 * pairs + 4), TOP, 10, "ends", np.int16),
        integers((pairs, 16, 2), 127, 11, "any", np.int16),
    )
    out = np.full(rows * 16 + 3, -1, np.int32)
    wide_tile(rows, a.ravel(), 4, 2 * pairs + 4, b.ravel(), pairs, out)
    products = np.einsum("rkj,kcj->rc", a[:, 4:].reshape(rows, pairs, 2).astype(np.int64), b.astype(np.int64))
    assert np.array_equal(out[: rows * 16].reshape(rows, 16), products) and (out[rows * 16 :] == -1).all()
