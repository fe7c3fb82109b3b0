"""Tasks side by side: results in order, memory within bounds, failures raised."""

import threading

import pytest

from squeeze.errors import DamagedError
from squeeze.system.in_order import in_order, ordered_map


@pytest.mark.parametrize("threads", [1, 3])
def test_tensors_come_in_order_whatever_their_sizes(threads):
    sizes = [100, 17 << 20, 3 << 20, 1, *[15 << 20] * 9, 20 << 20, 7]
    taken, given = [], []

    def tasks():
        for number, size in enumerate(sizes):
            taken.append(number)
            yield size, lambda threads, number=number: (number, threads)

    for result in in_order(tasks(), threads):
        given.append(result)
        ahead = sum(sizes[number] for number in taken[len(given) :])
        assert ahead <= (64 << 20) + 2 * max(sizes)
    assert [number for number, _ in given] == list(range(len(sizes)))
    assert {sizes[number] for number, used in given if used > 1} == ({17 << 20, 20 << 20} if threads > 1 else set())


def test_one_task_has_all_threads_and_one_batch_needs_none():
    def work(threads):
        return threads, threading.current_thread() is threading.main_thread()

    assert list(in_order([(5 << 20, work)], 3)) == [(3, True)]
    assert list(in_order([(1000, work), (2000, work)], 3)) == [(1, True)] * 2
    assert list(in_order([], 3)) == []


def test_two_batches_are_done_beside_each_other():
    meeting = threading.Barrier(2)

    def work(threads):
        meeting.wait(5)
        return threads

    assert list(in_order([(3 << 20, work)] * 2, 2)) == [1, 1]


def test_a_failure_among_tensors_side_by_side_is_raised():
    def fails(threads):
        raise DamagedError("no")

    results = in_order([(1 << 21, lambda threads: 0), (1, fails), (1, lambda threads: 1)], 2)
    assert next(results) == 0
    with pytest.raises(DamagedError, match="no"):
        next(results)


def test_of_what_does_not_fit_together_less_is_at_work():
    asked: list[int] = []

    def fits(total: int) -> bool:
        asked.append(total)
        return total <= 5

    costs = [2, 3, 1, 9, 1, 1, 1]
    assert list(ordered_map(lambda cost: 10 * cost, costs, 3, lambda cost: cost, fits)) == [10 * n for n in costs]
    assert asked == [5, 6, 4, 13, 10, 10, 2, 3]


def test_one_that_fits_nowhere_runs_alone():
    assert list(ordered_map(abs, [-1, -2], 2, lambda item: 7, lambda total: False)) == [1, 2]
