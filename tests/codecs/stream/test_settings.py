"""Division of threads between blocks and texts, which never changes the coded bytes."""

import pytest

import squeeze
from squeeze.codecs.stream import levels
from squeeze.codecs.stream.settings import Threads, allot
from tests.makers import inputs


@pytest.mark.parametrize("level", [3, 4, 5, 6])
def test_threads_are_shared_between_blocks(level):
    row = levels.LEVELS[level]
    assert allot(row, 4) == Threads(4, 1)
    assert allot(row, 1) == allot(row, None) == Threads(1, 1)


def test_two_threads_share_a_file_at_level_5():
    data = inputs.words(3_000)
    one, two = (squeeze.compress(data, 5, threads=threads, verify=False) for threads in (1, 2))
    assert one == two
    assert squeeze.decompress(one, threads=2) == data


def test_texts_at_once_share_the_threads_of_a_language_model():
    row = levels.LEVELS[8]
    assert allot(row, 8, texts=3) == Threads(3, 2)
    assert allot(row, 1, texts=2) == Threads(2, 1)
