"""The division of entries into lanes."""

import io

import numpy as np
import pytest

from squeeze.codecs.tokenwise.layout import LaneLayout


@pytest.mark.parametrize(("entries", "count"), [(1, 1), (5, 5), (7, 3), (9, 3), (100, 7)])
def test_every_entry_is_in_one_lane_and_active_lanes_come_first(entries, count):
    """Every entry lies in one lane, and a step's lanes are the first ones."""
    spelled = np.arange(1, entries + 1)
    layout = LaneLayout.of(spelled, count, 16)
    assert layout.counts.sum() == entries and layout.steps == layout.counts.max()
    assert sum(layout.active(step) for step in range(layout.steps)) == entries
    for step in range(layout.steps):
        assert layout.active(step) == (layout.counts > step).sum()
    ends = np.cumsum(layout.counts)
    parts = [spelled[end - n : end].sum() for end, n in zip(ends, layout.counts, strict=True)]
    assert layout.lengths == tuple(parts)
    assert LaneLayout.read(io.BytesIO(layout.to_bytes()), int(spelled.sum())) == layout
