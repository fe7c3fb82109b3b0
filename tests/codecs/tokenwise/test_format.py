"""docs/format.md, section 11, and docs/exactness.md are enough to decode tokenwise blocks, given the model's counts."""

import numpy as np
import pytest

from squeeze.codecs.tokenwise import lanes
from squeeze.lm import models
from squeeze.numerics import frequencies
from squeeze.numerics.team import Team
from tests.makers.tokenwise import TEXT, preset
from tests.references.naive_tokenwise import Decoder

REPEATED = TEXT[:120] + b"\xff\xfe" + TEXT[:110] * 3 + b"\xff" + TEXT[60:150] + TEXT[:90]


def counts_of(model, layout):
    """Return the callback of the naive decoder: cumulative counts of the leaves after what a lane was fed."""
    team = Team(1)
    sessions = [model.session(1, layout.used_window, 64, team) for _ in range(layout.lanes)]
    room = frequencies.allocate(1, model.leaves.size)

    def counts(lane, fed, bias):
        ids = [model.start_token if one is None or one < 0 else int(model.leaves[one]) for one in fed]
        sessions[lane].forward(np.array([ids], np.int64))
        sessions[lane].cdf(np.array([len(ids) - 1]), bias, room, np.array([0]))
        return frequencies.cumulative(room)[0].tolist()

    return counts


@pytest.mark.parametrize(("data", "count", "repeats"), [(TEXT[:300] + b"\xff\xfe\xff", 3, False), (REPEATED, 2, True)])
def test_blocks_decode_as_they_are_specified(folder, data, count, repeats):
    model = models.find(folder).network
    layout, payload = lanes.encode(data, model, preset(len(data), count, 32))
    assert layout.repeats is repeats and layout.lanes == count
    t = model.trie
    leaves = [t.spelling[a:b].tobytes() for a, b in zip(t.offsets, t.offsets[1:], strict=False)]
    assert Decoder(layout.to_bytes() + payload, len(data), leaves, counts_of(model, layout)).decode() == data
