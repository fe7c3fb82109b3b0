"""Blocks that later ones may repeat are kept as far back as the window goes, read back, or decoded again."""

import numpy as np
import pytest

from squeeze.codecs.stream.copies import Copies, Literals
from squeeze.codecs.stream.history import History, LoadedBlocks
from squeeze.errors import DamagedError
from squeeze.system.limits import Limits
from tests.makers import inputs

RAW = np.frombuffer(inputs.random_bytes(4_000), np.uint8)


def block(begin, size=1_000):
    return Literals(begin, size, RAW[begin : begin + size])


def test_blocks_before_the_window_are_forgotten():
    history = History(1_500, None)
    for begin in (0, 1_000, 2_000):
        history.add(block(begin))
    assert history.end == 3_000
    assert [history.at(offset).begin for offset in (1_000, 1_999, 2_000, 2_999)] == [1_000, 1_000, 2_000, 2_000]
    for offset in (0, 999, 3_000, 9_000):
        with pytest.raises(DamagedError, match="too far back"):
            history.at(offset)


def test_without_a_window_nothing_is_kept():
    history = History(0, None)
    history.add(block(0))
    assert history.end == 1_000
    with pytest.raises(DamagedError, match="too far back"):
        history.at(0)


def test_blocks_are_read_back_without_their_copies():
    asked = []

    def read_back(begin, end):
        asked.append((begin, end))
        return RAW[begin:end]

    history = History(3_000, Limits(memory=1), read_back)
    copies = Copies(1_000, *(np.array([number]) for number in (100, 50, -900)))
    rest = np.delete(RAW[1_000:2_000], slice(100, 150))
    for one in (block(0), Literals(1_000, 1_000, rest, copies), block(2_000), block(3_000)):
        history.add(one)
    assert np.array_equal(history.at(1_500).rest, rest)
    assert np.array_equal(history.at(1_999).rest, rest)
    assert np.array_equal(history.at(2_000).rest, RAW[2_000:3_000])
    assert asked == [(1_000, 2_000), (2_000, 3_000)]
    with pytest.raises(DamagedError, match="too far back"):
        history.at(999)


def test_blocks_that_were_used_last_are_kept():
    loaded = []

    def load(number):
        loaded.append(number)
        return block(1_000 * number)

    blocks = LoadedBlocks([0, 1_000, 2_000], load, 2_000, None)
    for offset in (10, 1_010, 20, 2_010, 30, 1_020):
        assert blocks.at(offset).begin == offset // 1_000 * 1_000
    assert loaded == [0, 1, 2, 1]
    assert np.array_equal(blocks.restored(2), RAW[2_000:3_000])
    with pytest.raises(DamagedError, match="before the stream"):
        blocks.at(-1)
