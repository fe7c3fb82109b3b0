"""Threads kept between calls: never shared, results in order, nothing left at work after a failure."""

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from squeeze.errors import DamagedError
from squeeze.packing.tensors import floats
from squeeze.packing.tensors.content import in_parts
from squeeze.system import parallel as module
from squeeze.system.parallel import in_order, ordered_map, parallel_ranges, working
from tests.makers.floats import as_bf16, bytes_of, weights


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


@pytest.fixture(autouse=True)
def _none_idle(monkeypatch):
    monkeypatch.setattr(module, "_idle", {})


def here(*rest: int) -> str:
    time.sleep(0.01)
    return threading.current_thread().name


WAYS = {
    "in_order": lambda: in_order([(3 << 20, here)] * 6, 2),
    "in_parts": lambda: in_parts(here, 6, 1, 2),
    "parallel_ranges": lambda: parallel_ranges(here, 6, 2),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_call_finds_the_threads_of_the_one_before(way):
    first, second = set(WAYS[way]()), set(WAYS[way]())
    assert first == second and len(first) == 2


def test_two_calls_at_once_have_threads_of_their_own():
    with working(2) as first, working(2) as second:
        one, other = first._pool, second._pool
        assert one is not other
    with working(2) as first, working(2) as second, working(2) as more:
        again, another, third = first._pool, second._pool, more._pool
        assert {one, other} == {again, another} and third not in (one, other)
    assert [pool._shutdown for pool in (third, another, again)] == [False, False, True]  # the last to come back


def test_the_caller_does_what_no_other_has_begun():
    caller, begun, gate = threading.current_thread().name, threading.Event(), threading.Event()

    def held() -> str:
        begun.set()
        assert gate.wait(5)
        return here()

    def last() -> str:
        gate.set()
        return here()

    with working(2) as work:
        work.add(held)
        assert begun.wait(5)  # so that the only thread of the pool is at it
        work.add(here)
        work.add(last)
        first, *others = [work.take() for _ in range(3)]
    assert first != caller and others == [caller] * 2


def test_what_is_not_taken_is_not_begun_or_over_at_the_end():
    done = []
    with working(2) as work:
        for number in range(20):
            work.add(lambda number=number: done.append((time.sleep(0.005), number)))
        work.take()
    count = len(done)
    time.sleep(0.02)
    assert 1 <= len(done) == count < 20


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_at_work_after_a_failure(way):
    running, gate = threading.Event(), threading.Event()
    over = []

    def work(first: int, *rest: int) -> None:
        if running.is_set():
            gate.wait(5)
            over.append(True)
            return
        running.set()
        time.sleep(0.05)
        gate.set()
        raise ValueError("as expected")

    calls = {
        "in_order": lambda: list(in_order([(3 << 20, work)] * 2, 2)),
        "in_parts": lambda: list(in_parts(work, 2, 1, 2)),
        "parallel_ranges": lambda: parallel_ranges(work, 4, 2),
    }
    with pytest.raises(ValueError, match="as expected"):
        calls[way]()
    count = len(over)
    time.sleep(0.02)
    assert len(over) == count
    assert len(set(WAYS[way]())) == 2


def test_two_threads_that_code_at_once_get_what_each_one_gets():
    count = 1 << 19
    cases = [bytes_of(as_bf16(weights(count) * scale)) for scale in (1, 30)]
    expected = [floats.encode(data, "BF16", 1).tobytes() for data in cases]

    def work(number: int) -> bool:
        for _ in range(8):
            payload = floats.encode(cases[number], "BF16", 2)
            if payload.tobytes() != expected[number]:
                return False
            if not np.array_equal(floats.decode(payload, "BF16", 2 * count, 2), cases[number]):
                return False
        return True

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(work, range(2)))
    before = threading.active_count()
    for _ in range(20):
        floats.encode(cases[0], "BF16", 2)
    assert threading.active_count() == before


FORKED = """
import os, warnings
import numpy as np
from squeeze.packing.tensors import floats
from squeeze.system.parallel import in_order

warnings.simplefilter("ignore")
data = np.random.default_rng(0).normal(size=1 << 19).astype(np.float32).view(np.uint8)

def run():
    coded = list(in_order([(data.size, lambda threads: floats.encode(data, "F32", threads))] * 3, 2))
    large = floats.encode(data, "F32", 2)
    return all(np.array_equal(floats.decode(one, "F32", data.size, 2), data) for one in [*coded, large])

assert run()
kept = floats.decode(floats.encode(data, "F32", 2), "F32", data.size, 2)
child = os.fork()
if not child:
    os._exit(0 if run() and run() else 1)
assert run() and os.waitpid(child, 0)[1] == 0
assert np.array_equal(kept, data)
print("done")
"""


@pytest.mark.skipif(not hasattr(module.os, "fork"), reason="the system does not fork")
def test_a_forked_process_has_threads_of_its_own_and_both_end():
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)
