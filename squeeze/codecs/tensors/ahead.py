"""Segments that take long to decode, read in any order by many threads: some are decoded ahead, and each but once where
they are read about in order."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock

import numpy as np

__all__ = ["Ahead"]


class Ahead:
    """work(number) decodes one of `count` segments, on `threads` threads of its own. As many are kept, and one more."""

    def __init__(self, work: Callable[[int], np.ndarray], count: int, threads: int):
        self._work, self._count, self._threads = work, count, threads
        self._made: dict[int, Future[np.ndarray]] = {}
        self._lock, self._pool = Lock(), ThreadPoolExecutor(threads, thread_name_prefix="squeeze-ahead")

    def get(self, number: int) -> np.ndarray:
        """A segment, which is not to be written to. Raises what `work` does."""
        with self._lock:
            wanted = range(max(number - 1, 0), min(number + self._threads, self._count))
            for other in [other for other in self._made if other not in wanted]:
                self._made.pop(other).cancel()
            for other in range(number, wanted.stop):
                if other not in self._made:
                    self._made[other] = self._pool.submit(self._work, other)
            found = self._made[number]
        return found.result()
