"""Memory for results: what is cut off is given out again, and nothing is given out twice."""

import numpy as np
import pytest

from squeeze.system import arena


@pytest.fixture(autouse=True)
def _new_piece(monkeypatch):
    monkeypatch.setattr(arena._own, "used", arena._PIECE, raising=False)


def test_the_rest_of_what_is_cut_is_given_out_again():
    kept = arena.cut(arena.fresh(100_000), 1_000)
    kept[:] = 7
    following = arena.fresh(100_000)
    assert following.ctypes.data - kept.ctypes.data == 1_024  # the next multiple of 64 bytes
    following[:] = 9
    assert kept.size == 1_000 and (kept == 7).all()


def test_nothing_is_given_out_twice():
    """Neither where memory was taken between, nor where one array is cut twice."""
    first, second = arena.fresh(1_000), arena.fresh(1_000)
    first[:], second[:] = 1, 2
    arena.cut(first, 10)[:] = 3
    third = arena.fresh(1_000)
    third[:] = 4
    arena.cut(third, 500)
    fourth = arena.cut(third, 500)
    arena.fresh(1_000)[:] = 5
    assert (first[:10] == 3).all() and (second == 2).all() and (fourth == 4).all()


def test_large_ones_are_arrays_of_their_own():
    buffer = arena.fresh(1 << 22)
    assert buffer.base is None
    buffer[:100] = np.arange(100)
    assert arena.cut(buffer, 100).tolist() == list(range(100))
