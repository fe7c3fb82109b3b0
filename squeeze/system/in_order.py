"""Work done side by side in threads, what comes out in its order: blocks of a file, and tensors of any size."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from typing import TypeVar

from squeeze.system.workers import working

__all__ = ["LARGE", "in_order", "ordered_map"]

T = TypeVar("T")
R = TypeVar("R")
LARGE = 1 << 24  # bytes from which a tensor gets all threads to itself
_BATCH = 1 << 21  # bytes that are worth handing to a thread
_IN_FLIGHT = 1 << 26  # bytes of batches at once


def in_order(tasks: Iterable[tuple[int, Callable[[int], T]]], threads: int) -> Iterator[T]:
    """What work(threads) gives for each of the tasks (bytes, work), in order.

    Small tasks run in batches beside each other, each on one thread, large ones alone on all threads. So does a single
    task; and where all are one batch, it runs in the caller's thread. Tasks are taken from their iterable in the
    caller's thread, and only as far ahead as memory for some megabytes of them allows.
    """
    if threads < 2:
        for _, work in tasks:
            yield work(1)
        return
    batches = _batches(tasks)
    first = next(batches, None)
    while first and first[0] >= LARGE:
        yield first[1][0](threads)  # before another is taken: there is one large task at a time
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
    """(bytes, tasks): a large one alone, small ones together."""
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
    """`map` over a few items at a time: at most `ahead` results (None: `threads`) are worked on or wait, and of several
    only as many as their costs in all fit."""
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
