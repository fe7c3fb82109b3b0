"""Memory for results: what is cut off or not in use any more is given out again, and nothing is given out twice."""

from concurrent.futures import ThreadPoolExecutor
from itertools import repeat

import numpy as np
import pytest
import torch

from squeeze.system import arena


@pytest.fixture(autouse=True)
def _new_piece(monkeypatch):
    monkeypatch.setattr(arena._own, "used", arena._PIECE, raising=False)
    monkeypatch.setattr(arena, "_blocks", [])


def test_the_rest_of_what_is_cut_is_given_out_again():
    kept = arena.shrink(arena.allocate(100_000), 1_000)
    kept[:] = 7
    following = arena.allocate(100_000)
    assert following.ctypes.data - kept.ctypes.data == 1_024  # the next multiple of 64 bytes
    following[:] = 9
    assert kept.size == 1_000 and (kept == 7).all()


def test_nothing_is_given_out_twice():
    """Neither where memory was taken between, nor where one array is cut twice."""
    first, second = arena.allocate(1_000), arena.allocate(1_000)
    first[:], second[:] = 1, 2
    arena.shrink(first, 10)[:] = 3
    third = arena.allocate(1_000)
    third[:] = 4
    arena.shrink(third, 500)
    fourth = arena.shrink(third, 500)
    arena.allocate(1_000)[:] = 5
    assert (first[:10] == 3).all() and (second == 2).all() and (fourth == 4).all()


@pytest.mark.parametrize("size", [(1 << 23) + 1, 1 << 24, 1 << 28])
def test_large_ones_may_be_cut(size):
    buffer = arena.allocate(size)
    assert buffer.size == size
    buffer[:100] = np.arange(100)
    assert arena.shrink(buffer, 100).tolist() == list(range(100))


@pytest.mark.parametrize("size", [1 << 20, 1 << 23, 1 << 24])
def test_a_block_is_given_out_again_when_nothing_of_it_is_in_use(size):
    def filled(count: int) -> list[np.ndarray]:
        found = [arena.allocate(size) for _ in range(count)]
        for number, one in enumerate(found):
            one[:] = number
        return found

    count = (48 << 20) // size
    filled(count)
    known = {block.ctypes.data for block in arena._blocks}
    used = filled(count)
    assert {block.ctypes.data for block in arena._blocks} <= known | {used[0].base.ctypes.data}
    assert all((one == number).all() for number, one in enumerate(used))


@pytest.mark.parametrize(
    "use",
    [lambda part: part[10:20], lambda part: part.view(np.uint16), torch.from_numpy, memoryview, lambda x: x.T.data],
)
def test_a_block_is_in_use_while_there_is_anything_made_of_a_part(use):
    part = arena.allocate(1 << 24)
    part[:] = 7
    kept = use(part)
    del part
    other = arena.allocate(1 << 24)
    other[:] = 9
    assert (np.asarray(kept).view(np.uint8) == 7).all()
    del kept
    assert len(arena._blocks) == 2
    arena.allocate(1 << 24)
    assert len(arena._blocks) == 2


def test_blocks_that_wait_take_a_bounded_size_however_many_there_were():
    held = [arena.allocate(size) for size in (9 << 20, 30 << 20, 1 << 20, 50 << 20, 1 << 22) for _ in range(20)]
    assert sum(block.size for block in arena._blocks) <= arena._KEPT
    held.clear()
    for _ in range(100):
        arena.allocate(40 << 20)
        arena.allocate(5 << 20)
    assert sum(block.size for block in arena._blocks) <= arena._KEPT


def test_threads_at_once_share_no_memory():
    def work(number: int) -> bool:
        for size in (1 << 24, 3 << 20, 1 << 23, 9 << 20) * 10:
            part = arena.allocate(size)[:: 1 << 12]
            part[:] = number
            if not (part == number).all():
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))
        assert list(pool.map(arena._own.__dict__.get, repeat("missing", 4))) == [None] * 4
