"""Weights are rounded to the nearest integers of their rows' scales, and what is not finite is found."""

import numpy as np
import pytest

from squeeze.lm.convert import round_rows


def quantised(rows):
    values, scales = np.full(rows.shape, 99, np.int8), np.full(len(rows), 99, np.float32)
    return round_rows(rows, values, scales), values, scales


def test_rows_are_rounded_by_a_scale_of_their_own():
    rng = np.random.default_rng(1)
    rows = (rng.standard_normal((9, 37)) * 10.0 ** rng.integers(-30, 20, (9, 1))).astype(np.float32)
    rows[3], rows[4], rows[5] = 0, 2.0**-110, -rows[5]
    rows[6, :5] = np.float32([127, 0.5, 1.5, -2.5, -127]) * np.abs(rows[6]).max()
    finite, values, scales = quantised(rows)
    top = np.abs(rows).max(axis=1)
    expected = np.where(top < np.float32(2.0**-100), np.float32(1), top / np.float32(127))
    assert finite
    assert np.array_equal(scales, expected)
    assert np.array_equal(values, np.rint(rows / expected[:, None]).astype(np.int8))
    assert np.abs(values).max() == 127


@pytest.mark.parametrize("number", [np.nan, -np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_found(number):
    rows = np.ones((3, 20), np.float32)
    rows[1, 7] = number
    assert not quantised(rows)[0]
