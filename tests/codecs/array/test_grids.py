"""Lines of a grid follow from its shape, or from differences that are alike a line apart."""

import numpy as np
import pytest

from squeeze.codecs.array import grids
from squeeze.codecs.array.layout import MOST_ACROSS
from tests.makers import arrays


@pytest.mark.parametrize(
    ("shape", "columns", "across"),
    [
        ([900], 1, 0),
        ([30, 40], 40, 0),
        ([30, 400], 1, 400),
        ([30, 400, 3], 3, 1200),
        ([5, 30, 400], 1, 400),
        ([30, 1], 1, 0),
        ([2, 30, 1], 1, 30),
        ([2, MOST_ACROSS + 1], 1, 0),
        ([], 1, 0),
    ],
    ids=str,
)
def test_a_shape_has_columns_and_lines(shape, columns, across):
    assert grids.of_shape(shape) == (columns, across)


def test_lines_are_found_in_numbers():
    heights = np.frombuffer(arrays.heights(60, 70), ">i2").astype(np.float64)
    assert grids.line_of(heights, 1) == 70
    colours = np.stack([heights, heights * 2, -heights], 1).ravel()
    assert grids.line_of(colours, 3) == 210


@pytest.mark.parametrize("numbers", [np.zeros(5000), np.arange(5000.0), np.arange(9.0), np.empty(0)], ids=range(4))
def test_numbers_without_lines_have_none(numbers):
    assert grids.line_of(numbers, 1) == 0
