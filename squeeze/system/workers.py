"""Threads that stay for the next call: to start some, and fill their working memory, takes as long as small tensors.

The caller's thread is one of them. A system that wakes several threads of one that then sleeps may leave them on one
core for some milliseconds, and a caller that works needs no waking.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any, Generic, TypeVar

__all__ = ["Work", "parallel_ranges", "working"]

T = TypeVar("T")
_KEPT = 2  # pools of one size
_idle: dict[int, list[ThreadPoolExecutor]] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # threads are not copied


class Work(Generic[T]):
    """What the threads of a pool and the caller's do beside each other, and what comes of it, in order."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._waiting = deque[tuple[Future[T], Callable[[], T]]]()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, work: Callable[..., T], *arguments: object) -> None:
        self._waiting.append((self._pool.submit(work, *arguments), partial(work, *arguments)))

    def take(self) -> T:
        """What came of the first that was added and is not taken yet. Raises what it raised."""
        while not self._waiting[0][0].done() and self._do_one():
            pass
        return self._waiting.popleft()[0].result()

    def _do_one(self) -> bool:
        """Do in this thread what no other has begun; whether there was anything."""
        for place, (future, work) in enumerate(self._waiting):
            if future.cancel():
                mine = Future[T]()
                try:
                    mine.set_result(work())
                except Exception as error:
                    mine.set_exception(error)
                self._waiting[place] = (mine, work)
                return True
        return False

    def end(self) -> None:
        """Cancel what waits, and wait for what runs."""
        for future in [future for future, _ in self._waiting if not future.cancel()]:
            future.exception()


@contextmanager
def working(threads: int) -> Iterator[Work[Any]]:
    """Work for so many threads, two or more, with the caller's: no other call uses them meanwhile. It has ended at the
    end."""
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
