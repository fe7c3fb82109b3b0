"""Choices are coded in both directions: by state.py, tokens.py and codes.py, from predictions of matcher.py and
huffman.py."""

import zlib

import numpy as np
import pytest

from squeeze.codecs.parse.deflate import choices, codes, huffman, layout, matcher, reading, state, tokens
from squeeze.codecs.parse.deflate.encoders import Encoder
from squeeze.codecs.parse.room import Room
from squeeze.numerics.bitmodels import adaptive, coder as arithmetic
from squeeze.numerics.jit import kernel
from tests.makers import inputs

TEXT = inputs.words(30_000)


@kernel
def _predicted(m, p):
    return matcher.predict(m, p)


def read(level: int) -> layout.Tokens:
    coder = zlib.compressobj(level, zlib.DEFLATED, -15)
    found = reading.read(np.frombuffer(coder.compress(TEXT) + coder.flush(), np.uint8), Room(1 << 20))
    assert found
    return found[0]


def coded(stream: layout.Tokens, encoder: Encoder) -> state.Coding:
    made = state.coding(stream, encoder.settings, 1 << 24, np.zeros(1 << 16, np.uint8), state.nothing_learnt())
    arithmetic.start_encoder(made.coder)
    assert choices.code(made, choices.paths_of(made), False) > 0
    return made


@pytest.mark.parametrize("level", [1, 4, 6, 9])
def test_the_same_choices_come_back(level):
    stream = read(level)
    made = coded(stream, Encoder(level))
    size = arithmetic.finish_encoder(made.coder, made.coded)
    again = layout.empty(0, stream.tokens.size, stream.blocks.shape[0], stream.repeats.size)
    back = state.coding(
        again._replace(content=stream.content),
        made.matcher.settings,
        1 << 24,
        made.coded[:size],
        state.nothing_learnt(),
    )
    arithmetic.start_decoder(back.coder, back.coded)
    assert choices.code(back, choices.paths_of(back), True) == stream.blocks.shape[0]
    for name in ("tokens", "blocks", "codes", "repeats"):
        assert np.array_equal(getattr(back.stream, name), getattr(stream, name)), name


def test_a_wrong_level_costs_more_than_the_right_one():
    stream = read(9)
    sizes = [arithmetic.finish_encoder(made.coder, made.coded) for made in (coded(stream, Encoder(n)) for n in (9, 1))]
    assert sizes[0] < 40 < sizes[1]


def test_a_match_that_grows_to_the_left_over_the_one_before_is_expected_of_zlib_ng():
    content = b"--bcdefgh.xabcd!abcdefgh" + bytes(range(128, 256)) * 3
    zlib_ng = matcher.matcher(np.frombuffer(content, np.uint8), Encoder(24).settings, 1 << 20)
    assert _predicted(zlib_ng, 16) == (matcher.LAZY, 4, 5)  # "abcd", before "efgh"
    assert _predicted(zlib_ng, 17) == (matcher.MATCH, 7, 15)


def test_too_many_steps_end_the_coding():
    stream = read(9)
    made = state.coding(stream, Encoder(9).settings, 1_000, np.zeros(1 << 16, np.uint8), state.nothing_learnt())
    arithmetic.start_encoder(made.coder)
    assert choices.code(made, choices.paths_of(made), False) == -1


def test_the_modules_agree_on_their_sizes():
    assert huffman.work_space().shape[1] > 2 * layout.LITERALS
    assert matcher.RING == 2 * layout.MOST_DISTANCE and Encoder().settings.size == matcher.FIELDS
    assert state.nothing_learnt().tolist() == [adaptive.EVEN] * state.ENTRIES
    assert tokens.__doc__ and codes.__doc__
