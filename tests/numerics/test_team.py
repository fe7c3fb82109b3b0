"""A team of threads ends its work when one of them fails."""

import numpy as np
import pytest

from squeeze.numerics.team import Team


def test_a_failure_in_any_thread_of_a_team_ends_its_work():
    for failing in range(3):
        team = Team(3)

        def work(rank: int, barrier: np.ndarray, failing: int = failing) -> None:
            if rank == failing:
                raise ValueError("as expected")

        with pytest.raises(ValueError, match="as expected"):
            team.run(work)
        with pytest.raises(RuntimeError, match="broken off"):
            team.run(work)
        team.close()
