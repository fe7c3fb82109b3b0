"""A team of threads ends its work when one of them fails."""

import numpy as np
import pytest

from squeeze.numerics.team import Team, Watch


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


class Clock:
    """Seconds that pass by themselves, and those in which a thread runs."""

    def __init__(self) -> None:
        self.now = self.ran = 0.0

    def work(self, team: Team, share: float) -> int:
        """A run of 0.1 s, of which the caller's thread gets a share; how many threads worked."""
        sizes = []

        def work(rank: int, size: int, barrier: np.ndarray) -> None:
            if rank == 0:
                sizes.append(size)
                self.now += 0.1
                self.ran += 0.1 * share

        team.run(work)
        return sizes[0]


def test_a_team_that_is_kept_from_working_works_alone_for_a_while():
    clock = Clock()
    team = Team(3, Watch(lambda: clock.now, lambda: clock.ran))
    assert [clock.work(team, 1.0) for _ in range(3)] == [3, 3, 3]
    assert clock.work(team, 0.3) == 3
    assert [clock.work(team, 0.5) for _ in range(4)] == [1] * 4
    clock.now += 0.2
    assert clock.work(team, 0.3) == 3  # it tries again, and is alone for twice as long
    assert [clock.work(team, 1.0) for _ in range(9)] == [1] * 9
    clock.now += 0.2
    assert [clock.work(team, 1.0) for _ in range(2)] == [3, 3]
    team.close()
