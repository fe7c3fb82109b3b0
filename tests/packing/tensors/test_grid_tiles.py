"""Tiles of a matrix, and the codes of their values."""

import numpy as np
import pytest

from squeeze.packing.tensors.content import InMemory, whole
from squeeze.packing.tensors.grid_levels import INT
from squeeze.packing.tensors.grid_tiles import Codes, Grid, Tiles

F32 = 2


@pytest.mark.parametrize("values", [1, 7, 12, 24, 35])
@pytest.mark.parametrize("rows, width", [(1, 3), (2, 3), (3, 1), (1, 7), (4, 7)])
def test_tiles_are_counted(values, rows, width):
    places = {(k // 7 // rows, k % 7 // width) for k in range(values)}
    assert Tiles(values, 7, rows, width).number == len(places)


@pytest.mark.parametrize("keeps", [False, True])
def test_codes_count_from_the_first_number_of_their_tile(keeps):
    numbers = np.array([[-3, -1, 200, 201], [-2, 0, 250, 199]])
    scales = np.float32([0.5, 0.25])
    data = (numbers * np.repeat(scales, 2)).astype(np.float32)
    kept = numbers.astype(np.uint8).reshape(-1) if keeps else None
    firsts = np.array([-3, 199], np.int16)
    grid = Grid(INT, F32, Tiles(8, 4, 2, 2), scales, np.zeros(1, np.float32), firsts, codes=kept)
    codes = Codes(InMemory(data.reshape(-1).view(np.uint8)), "F32", grid)
    assert whole(codes).tolist() == [0, 2, 1, 2, 1, 3, 51, 0]
    assert np.array_equal(codes.in_memory(1).data, whole(codes))
