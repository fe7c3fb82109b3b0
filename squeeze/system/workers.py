"""Threads that stay for the next call: to start some, and fill their working memory, takes as long as small tensors."""

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

__all__ = ["ended", "workers"]

_KEPT = 2  # pools of one size
_idle: dict[int, list[ThreadPoolExecutor]] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # threads are not copied


@contextmanager
def workers(threads: int) -> Iterator[ThreadPoolExecutor]:
    """A pool of so many threads that no other call uses meanwhile. Its work is to have ended at the end."""
    idle = _idle.setdefault(threads, [])
    try:
        pool = idle.pop()
    except IndexError:
        pool = ThreadPoolExecutor(threads, thread_name_prefix="squeeze")
    try:
        yield pool
    finally:
        if len(idle) < _KEPT:
            idle.append(pool)
        else:
            pool.shutdown(wait=False)


def ended(futures: Iterable[Future[Any]]) -> None:
    """Cancel what waits, and wait for what runs."""
    for future in futures:
        if not future.cancel():
            future.exception()
