"""A few threads that work as one inside compiled code, with barriers cheap enough for thousands a second."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core import types
from numba.extending import intrinsic

from squeeze.numerics.jit import inline

# Cells of a barrier, a cache line apart.
_ARRIVED, _ROUND, _BROKEN = 0, 8, 16
_CELLS = 24


def _pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
    return builder.gep(data, [arguments[1]])


@intrinsic
def _add_atomic(typingctx, array, index, value):
    """array[index] += value for all threads to see; returns what it was."""

    def codegen(context, builder, signature, arguments):
        return builder.atomic_rmw("add", _pointer(context, builder, signature, arguments), arguments[2], "seq_cst")

    return types.int64(array, types.int64, types.int64), codegen


@intrinsic
def _load_atomic(typingctx, array, index):
    def codegen(context, builder, signature, arguments):
        return builder.load_atomic(_pointer(context, builder, signature, arguments), "seq_cst", 8)

    return types.int64(array, types.int64), codegen


_yield_processor = types.ExternalFunction("sched_yield", types.int32())
_SPINS = 2000


@inline
def wait(barrier, size):
    """Wait until all `size` threads are here. Returns False where the team was broken off."""
    if size == 1:
        return True
    turn = _load_atomic(barrier, _ROUND)
    if _add_atomic(barrier, _ARRIVED, 1) == size - 1:
        _add_atomic(barrier, _ARRIVED, -size)
        _add_atomic(barrier, _ROUND, 1)
        return True
    spins = 0
    while _load_atomic(barrier, _ROUND) == turn:
        if _load_atomic(barrier, _BROKEN) != 0:
            return False
        spins += 1
        if spins > _SPINS:  # the others may be waiting for this processor
            _yield_processor()
    return True


class Team:
    """`size` threads, the caller's among them. `run(f)` calls f(rank, barrier) on all and returns when all are done.

    What one of them raises, `run` raises; after that, and after `close`, it raises RuntimeError.
    """

    def __init__(self, size: int):
        self.size = size
        self.barrier = np.zeros(_CELLS, np.int64)
        self._work: Callable[[int, np.ndarray], None] | None = None
        self._go = [threading.Semaphore(0) for _ in range(size - 1)]
        self._done = threading.Semaphore(0)
        self._failure: BaseException | None = None
        self._threads = [threading.Thread(target=self._serve, args=(i,), daemon=True) for i in range(size - 1)]
        for thread in self._threads:
            thread.start()

    def run(self, work: Callable[[int, np.ndarray], None]) -> None:
        self._refuse_if_broken()
        self._work = work
        for go in self._go:
            go.release()
        try:
            work(0, self.barrier)
        except BaseException:
            self.barrier[_BROKEN] = 1
            raise
        for _ in self._go:
            self._done.acquire()
        if self._failure:
            raise self._failure
        self._refuse_if_broken()

    def _refuse_if_broken(self) -> None:
        if self.barrier[_BROKEN]:
            raise RuntimeError("a team of threads was broken off")

    def close(self) -> None:
        """End the threads; a team that is broken off in the middle of its work ends too."""
        self.barrier[_BROKEN] = 1
        self._work = None
        for go in self._go:
            go.release()
        for thread in self._threads:
            thread.join()

    def _serve(self, index: int) -> None:
        while True:
            self._go[index].acquire()
            work = self._work
            if work is None:
                self._done.release()  # `run` may be waiting already
                return
            try:
                work(index + 1, self.barrier)
            except BaseException as failure:
                self._failure = failure
                self.barrier[_BROKEN] = 1
            self._done.release()
