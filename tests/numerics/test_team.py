"""A team of threads ends its work when one of them fails."""

import numpy as np
import pytest

from squeeze.numerics.jit import kernel
from squeeze.numerics.team import Team, Watch, advance, wait_for


def test_a_failure_in_any_thread_of_a_team_ends_its_work():
    for failing in range(3):
        team = Team(3)

        def work(rank: int, size: int, barrier: np.ndarray, failing: int = failing) -> None:
            if rank == failing:
                raise ValueError("as expected")

        with pytest.raises(ValueError, match="as expected"):
            team.run(work)
        with pytest.raises(RuntimeError, match="broken off"):
            team.run(work)
        team.close()


def test_a_team_that_is_kept_from_working_works_alone_for_a_while():
    watch, now = Watch(), 100.0
    for _ in range(9):
        watch.note(now, 0.1, 0.1)
        assert watch.together(now)
    watch.note(now, 0.01, 0.0)  # too short to tell
    assert watch.together(now)
    pause = 0.5
    for _ in range(4):  # it tries again, and is alone for twice as long
        watch.note(now, 0.1, 0.05)
        assert not watch.together(now) and not watch.together(now + 0.99 * pause)
        now += pause
        assert watch.together(now)
        pause *= 2
    watch.note(now, 0.1, 0.09)
    watch.note(now, 0.1, 0.05)
    assert not watch.together(now + 0.4) and watch.together(now + 0.5)


def test_the_caller_alone_works_while_a_team_pauses():
    class Paused(Watch):
        def together(self, now: float) -> bool:
            return False

    sizes = []
    for watch in (Watch(), Paused()):
        team = Team(3, watch)
        team.run(lambda rank, size, barrier: sizes.append((rank, size)))
        team.close()
    assert sorted(sizes) == [(0, 1), (0, 3), (1, 3), (2, 3)]


@kernel
def steps(count, seen, barrier, rank, size):
    """Thread after thread notes its step, `count` times."""
    for step in range(count):
        if not wait_for(barrier, 0, rank, step + 1):
            return False
        seen[rank, step] = rank if rank == 0 else seen[rank - 1, step] + 1
        advance(barrier, rank)
    return True


def test_threads_wait_for_those_before_them():
    four, seen = Team(4), np.full((4, 500), -1)
    for _ in range(20):  # what is done counts from each run on
        seen[:] = -1
        four.run(lambda rank, size, barrier: steps(500, seen, barrier, rank, size), apart=True)
        assert (seen == np.arange(4)[:, None]).all()
    four.close()
    four.barrier[4 * 8 :] = 0
    assert not steps(1, seen, four.barrier, 1, 4)
