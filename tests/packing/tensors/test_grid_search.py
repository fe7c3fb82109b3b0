"""The scale of a tile from its distinct values alone."""

import numpy as np
import pytest

from squeeze.packing.tensors.grid_fit import Space, fit_bands
from squeeze.packing.tensors.grid_levels import INT, NF4, TABLES

F32 = 2


@pytest.mark.parametrize(
    ("kind", "levels"),
    [(INT, np.array([3, -5, 0, 1], np.float32)), (NF4, TABLES[NF4, 0, [8, 3, 0, 5]])],
    ids=["int", "nf4"],
)
def test_the_scale_of_a_tile_rebuilds_it(kind, levels):
    """Fit a tile of several rows, as grid_search.py does, whose values are no group like the one before."""
    values = (levels * np.float32(0.375)).view(np.uint32)
    scale, is_fit = fitted(values, kind)
    assert is_fit
    assert np.array_equal((levels * scale).astype(np.float32).view(np.uint32), values)
    for other in ([1, np.e, np.pi, 170.7], [1, np.inf, 2, 3], [1, np.nan, 2, 3]):
        assert not fitted(np.array(other, np.float32).view(np.uint32), kind)[1]


def fitted(values, kind):
    """Return the scale of a tile of two rows of two values, and whether it fits."""
    scales, offsets = np.empty((2, 1), np.float32)
    room = scales, offsets, *np.empty((2, 1), np.int16), np.empty(4, np.uint8)
    is_fit = fit_bands(values, F32, kind, 2, 2, 2, *room, *Space().arrays)
    return scales[0], is_fit
