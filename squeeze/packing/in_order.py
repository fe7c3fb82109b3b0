"""Tensors coded side by side, what comes out in their order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["in_order"]

T = TypeVar("T")
_LARGE = 1 << 22  # bytes from which a tensor gets all threads to itself
_IN_FLIGHT = 1 << 23  # bytes of smaller ones at once


def in_order(tasks: Iterable[tuple[int, Callable[[int], T]]], threads: int) -> Iterator[T]:
    """What work(threads) gives for each of the tasks (bytes, work), in order.

    Small tasks run beside each other on one thread each, large ones alone on all threads. Tasks are taken from their
    iterable in the caller's thread and only as far ahead as memory for some megabytes of them allows.
    """
    if threads < 2:
        for _, work in tasks:
            yield work(1)
        return
    waiting: deque[tuple[int, Future[T]]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="squeeze-tensors") as pool:
        try:
            for size, work in tasks:
                if size < _LARGE:
                    waiting.append((size, pool.submit(work, 1)))
                while waiting and (size >= _LARGE or sum(other for other, _ in waiting) > _IN_FLIGHT):
                    yield waiting.popleft()[1].result()
                if size >= _LARGE:
                    yield work(threads)
            while waiting:
                yield waiting.popleft()[1].result()
        finally:
            for _, future in waiting:
                future.cancel()
