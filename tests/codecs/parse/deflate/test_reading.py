"""Streams are read into tokens and codes, and written as the same bits."""

import zlib

import numpy as np
import pytest

from squeeze.codecs.parse.deflate import layout, reading, writing
from squeeze.codecs.parse.room import Room
from tests.makers import inputs

TEXT = inputs.words(20_000) + inputs.random_bytes(500)


def deflated(data: bytes, level: int, strategy: int = 0) -> np.ndarray:
    coder = zlib.compressobj(level, zlib.DEFLATED, -15, 8, strategy)
    return np.frombuffer(coder.compress(data) + coder.flush(), np.uint8)


@pytest.mark.parametrize(("level", "strategy"), [(0, 0), (1, 0), (9, 0), (6, 2), (6, 4)])
def test_what_is_read_is_written(level, strategy):
    stream = deflated(TEXT, level, strategy)
    found = reading.read(stream, Room(len(TEXT)))
    assert found and found[1] == stream.size
    assert found[0].content.tobytes() == TEXT
    assert writing.write(found[0]).tobytes() == stream.tobytes()


def test_tokens_are_matches_and_literals():
    found = reading.read(deflated(b"abcabcabcabcx", 9), Room(100))
    assert found
    tokens = found[0].tokens.tolist()
    assert tokens == [0, 0, 0, 0, 8 << 16 | 3, 0]  # zlib takes no match with the first byte


def test_a_share_of_the_content_is_one_of_the_tokens():
    found = reading.read(deflated(bytes(9_000) + inputs.random_bytes(1_000), 6), Room(100_000))
    assert found and found[0].share_of(0, 10_000) == 1
    assert found[0].share_of(0, 9_000) < 0.05 < 0.95 < found[0].share_of(9_000, 10_000)
    stored = reading.read(deflated(TEXT, 0), Room(100_000))
    assert stored and stored[0].share_of(0, len(TEXT) // 4) == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("cut", [1, 2, 10, 100])
def test_a_stream_that_is_cut_off_is_none(cut):
    assert reading.read(deflated(TEXT, 6)[:-cut], Room(1 << 20)) is None


def test_lengths_and_distances_have_the_symbols_of_the_standard():
    assert layout.LENGTH_BASE[[0, 7, 8, 27, 28]].tolist() == [3, 10, 11, 227, 258]
    assert layout.LENGTH_EXTRA[[0, 8, 27, 28]].tolist() == [0, 1, 5, 0]
    assert layout.DISTANCE_BASE[[0, 4, 29]].tolist() == [1, 5, 24577]
    assert layout.LENGTH_SYMBOL[[3, 10, 11, 12, 257, 258]].tolist() == [0, 7, 8, 8, 27, 28]
    assert layout.DISTANCE_SYMBOL[[1, 4, 5, 6, 7, 32768]].tolist() == [0, 3, 4, 4, 5, 29]
