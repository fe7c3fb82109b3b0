"""The cheapest tokens: finder.py finds the nearest match for each length, and paths.py their costs."""

import numpy as np
import pytest

from squeeze.codecs.parse.deflate import finder, layout, matcher, paths
from squeeze.codecs.parse.deflate.encoders import Encoder
from squeeze.numerics.jit import kernel
from tests.makers import cheapest, inputs

TEXT = inputs.words(3_000) + bytes(500) + inputs.words(1_000)


@kernel
def _look(x, start, end):
    paths.look(x, start, end)


@kernel
def _measure(x, start):
    paths.measure(x, start)


def looked_at(content: bytes, level: int, start: int = 0) -> paths.Paths:
    steps = matcher.matcher(np.frombuffer(content, np.uint8), Encoder(level).settings, 1 << 30).state
    made = paths.paths(np.frombuffer(content, np.uint8), Encoder(level).settings, steps, True)
    _look(made, start, len(content))
    return made


@pytest.mark.parametrize("start", [0, 700, 3_900])
def test_the_nearest_match_of_each_length_is_found(start):
    found = looked_at(TEXT, 16, start).finder
    assert found.state[finder.FOUND] == len(TEXT)
    for p, expected in enumerate(cheapest.nearest(TEXT)[start:]):
        matches = found.matches[found.ends[p] : found.ends[p + 1]].tolist()
        lengths = [match >> 16 for match in matches]
        longest = {length: match & 0xFFFF for length, match in zip(lengths, matches, strict=True)}
        assert [token for token in expected if token[0] in longest] == list(longest.items()), p
        assert len(expected) == (max(lengths) - 2 if lengths else 0), p


def test_nothing_is_looked_for_in_a_long_match():
    content = inputs.words(400) * 2
    found = looked_at(content, 21).finder
    assert found.ends[400] < found.ends[401] == found.ends[600]


def test_costs_are_those_of_the_cheapest_tokens():
    content = b"abcabcabcabc"
    made = looked_at(content, 16)
    _measure(made, 0)  # with the fixed codes: three literals of 8 bits, a length of 7 and a distance of 5
    assert made.rest[0] == 24 + 7 + layout.LENGTH_EXTRA[layout.LENGTH_SYMBOL[9]] + 5 + layout.DISTANCE_EXTRA[2]
    assert made.rest[len(content)] == 0 and made.rest[11] == 8
