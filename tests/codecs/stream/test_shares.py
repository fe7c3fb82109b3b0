"""Shares of progress add up to the whole, in the order of the work."""

import pytest

from squeeze.codecs.stream.shares import shares


@pytest.mark.parametrize("weights", [[1.0], [3.0, 1.0], [0.1, 5.0, 2.5, 0.0], [0.0, 0.0]])
def test_all_of_the_progress_is_told(weights):
    told = list[int]()
    for number, share in enumerate(shares(told.append, 1_000, weights)):
        for count in (400, 500, 300) if number % 2 else (250, 250):  # more than there is, and less
            share(count)
        share.finish()
        share.finish()
    assert sum(told) == 1_000 and min(told) > 0


def test_a_share_is_as_large_as_its_weight():
    told = list[int]()
    first, second = shares(told.append, 1_000, [9.0, 1.0])
    first(500)
    assert sum(told) == 450
    first.finish()
    second(1_000)
    assert told[-1] == 100


def test_nobody_need_listen():
    (share,) = shares(None, 10, [1.0])
    share(10)
    share.finish()
    assert shares(None, 10, []) == []
