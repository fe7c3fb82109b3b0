"""Work on several threads whose results come in order: blocks of a file, tensors of any size, ranges of a loop.

Threads are kept for the next call: starting them and warming up their memory takes as long as a small tensor. The
caller's thread takes part. A system that wakes several threads of a sleeping one may leave them on one core for some
milliseconds, and a caller that works needs no waking.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import chain, pairwise
from typing import Any, Generic, TypeVar

__all__ = ["LARGE", "Work", "in_order", "ordered_map", "parallel_ranges", "working"]

R = TypeVar("R")
T = TypeVar("T")
LARGE = 1 << 24  # bytes from which a tensor gets all threads
_BATCH = 1 << 21  # the least bytes of a batch
_IN_FLIGHT = 1 << 26  # bytes of batches in flight
_KEPT = 2  # pools that are kept for each number of threads
_idle: dict[int, list[ThreadPoolExecutor]] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # a forked process has no threads


class Work(Generic[T]):
    """A queue of calls that a thread pool and the caller's thread execute, whose results are taken in order."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._waiting = deque[tuple[Future[T], Callable[[], T]]]()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, work: Callable[..., T], *arguments: object) -> None:
        """Add a call."""
        self._waiting.append((self._pool.submit(work, *arguments), partial(work, *arguments)))

    def take(self) -> T:
        """Return the result of the oldest call that was not taken yet, or raise its exception. Help with the work
        meanwhile.
        """
        while not self._waiting[0][0].done() and self._do_one():
            pass
        return self._waiting.popleft()[0].result()

    def _do_one(self) -> bool:
        """Execute a call that no thread has started. Return False if all are started."""
        for place, (future, work) in enumerate(self._waiting):
            if future.cancel():
                done_here = Future[T]()
                try:
                    done_here.set_result(work())
                except Exception as error:
                    done_here.set_exception(error)
                self._waiting[place] = (done_here, work)
                return True
        return False

    def end(self) -> None:
        """Cancel the calls that wait, and wait for those that run."""
        for future in [future for future, _ in self._waiting if not future.cancel()]:
            future.exception()


@contextmanager
def working(threads: int) -> Iterator[Work[Any]]:
    """Return a queue with `threads` threads, at least 2 with the caller's, that no other call uses. It ends with the
    block.
    """
    idle = _idle.setdefault(threads, [])
    try:
        pool = idle.pop()
    except IndexError:
        pool = ThreadPoolExecutor(threads - 1, thread_name_prefix="squeeze")
    work = Work[Any](pool)
    try:
        yield work
    finally:
        work.end()
        if len(idle) < _KEPT:
            idle.append(pool)
        else:
            pool.shutdown(wait=False)


def in_order(tasks: Iterable[tuple[int, Callable[[int], T]]], threads: int) -> Iterator[T]:
    """Yield the results of tasks in order.

    Small tasks run in batches, each batch on one thread. Large tasks run alone on all threads, and so does a single
    task. A single batch runs in the caller's thread. Tasks are taken from the iterable in the caller's thread, only as
    far ahead as about 64 MiB of them allow.

    Args:
        tasks: Pairs of a size in bytes and a function that takes the number of threads.
        threads: The number of threads.
    """
    if threads < 2:
        for _, work in tasks:
            yield work(1)
        return
    batches = _batches(tasks)
    first = next(batches, None)
    while first and first[0] >= LARGE:
        yield first[1][0](threads)  # before the next is taken, so that only one large task is in memory
        first = next(batches, None)
    second = next(batches, None)
    if first and not second:
        yield from _run(first[1], threads if len(first[1]) == 1 else 1)
        return
    with working(threads) as waiting:
        sizes = deque[int]()
        for size, batch in chain(filter(None, (first, second)), batches):
            if size < LARGE:
                sizes.append(size)
                waiting.add(_run, batch)
            while sizes and (size >= LARGE or sum(sizes) > _IN_FLIGHT):
                sizes.popleft()
                yield from waiting.take()
            if size >= LARGE:
                yield batch[0](threads)
        while waiting:
            yield from waiting.take()


def _batches(tasks: Iterable[tuple[int, Callable[[int], T]]]) -> Iterator[tuple[int, list[Callable[[int], T]]]]:
    """Yield (bytes, tasks): large tasks alone, small tasks together."""
    total = 0
    batch: list[Callable[[int], T]] = []
    for size, work in tasks:
        if batch and (size >= LARGE or total >= _BATCH):
            yield total, batch
            total, batch = 0, []
        if size >= LARGE:
            yield size, [work]
        else:
            total, batch = total + size, [*batch, work]
    if batch:
        yield total, batch


def _run(batch: list[Callable[[int], T]], threads: int = 1) -> list[T]:
    return [work(threads) for work in batch]


def ordered_map(
    function: Callable[[T], R],
    items: Iterable[T],
    threads: int,
    cost: Callable[[T], int] = lambda item: 0,
    fits: Callable[[int], bool] = lambda total: True,
    ahead: int | None = None,
) -> Iterator[R]:
    """Yield function(item) for each item in order, with several items in progress.

    Args:
        function: What to compute.
        items: Its arguments.
        threads: The number of threads.
        cost: The cost of an item, such as bytes of memory.
        fits: Whether items of this total cost may be in progress. A single item always may.
        ahead: The most results in progress or waiting; `threads` if None.
    """
    if threads <= 1:
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(threads)
    waiting: deque[tuple[Future[R], int]] = deque()
    try:
        for item in items:
            needed = cost(item)
            while waiting and not fits(sum(cost for _, cost in waiting) + needed):
                yield waiting.popleft()[0].result()
            waiting.append((pool.submit(function, item), needed))
            if len(waiting) >= (ahead or threads):
                yield waiting.popleft()[0].result()
        while waiting:
            yield waiting.popleft()[0].result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def parallel_ranges(work: Callable[[int, int], T], count: int, threads: int) -> list[T]:
    """Call `work(first, last)` on ranges that cover 0 to `count`, two ranges a thread, and return the results in order.

    Fewer than 4 items, or one thread, are one call in the caller's thread.
    """
    if threads <= 1 or count < 4:
        return [work(0, count)]
    ranges = min(2 * threads, count)
    edges = [i * count // ranges for i in range(ranges)] + [count]
    with working(threads) as waiting:
        for first, last in pairwise(edges):
            waiting.add(work, first, last)
        return [waiting.take() for _ in edges[1:]]
