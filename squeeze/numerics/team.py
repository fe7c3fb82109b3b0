"""A team of threads for compiled code, with barriers cheap enough for thousands a second.

Threads that wait for each other lose most when other processes use the processors: each barrier may take as long as the
system lets others run. So a thread that waits for long sleeps, and a team that is kept from working uses only the
caller's thread for a while.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from squeeze.numerics.codegen import intrinsic, types
from squeeze.numerics.jit import inline

# Cells of a barrier.
_LINE = 8  # cells of a cache line
_ARRIVED, _ROUND, _BROKEN, _NAPS, _DONE = range(0, 5 * _LINE, _LINE)  # from the last on, one for each thread
_Work = Callable[[int, int, np.ndarray], None]  # arguments: rank, threads at work, barrier


def _pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
    return builder.gep(data, [arguments[1]])


@intrinsic
def add_atomic(typingctx, array, index, value):
    """Add to array[index] atomically, and return the old value."""

    def codegen(context, builder, signature, arguments):
        return builder.atomic_rmw("add", _pointer(context, builder, signature, arguments), arguments[2], "seq_cst")

    return types.int64(array, types.int64, types.int64), codegen


@intrinsic
def _load_atomic(typingctx, array, index):
    def codegen(context, builder, signature, arguments):
        return builder.load_atomic(_pointer(context, builder, signature, arguments), "seq_cst", 8)

    return types.int64(array, types.int64), codegen


_yield_processor = types.ExternalFunction("sched_yield", types.int32())
_sleep = types.ExternalFunction("usleep", types.int32(types.uint32))
_SPINS, _YIELDS, _NAP = 100_000, 1000, 200  # turns of a waiting loop, about 200 and 500 us; microseconds
_SLEPT = 1.5e-6 * _NAP  # seconds that a nap takes where the processor is free
_WATCHED, _LEAST = 0.05, 0.75  # seconds of work; the share of them in which the threads have to have run, or napped
_ALONE, _LONGEST = 0.5, 16.0  # seconds: the first time that a team works alone, and the longest


@inline
def _pause(barrier, spins):
    """Yield or sleep after many iterations of a waiting loop."""
    if spins > _SPINS + _YIELDS:
        add_atomic(barrier, _NAPS, 1)
        _sleep(np.uint32(_NAP))
    elif spins > _SPINS:  # the others may be waiting for this processor
        _yield_processor()


@inline
def wait(barrier, size):
    """Wait until all `size` threads have called this. Return False if the team was broken off."""
    if size == 1:
        return True
    turn = _load_atomic(barrier, _ROUND)
    if add_atomic(barrier, _ARRIVED, 1) == size - 1:
        add_atomic(barrier, _ARRIVED, -size)
        add_atomic(barrier, _ROUND, 1)
        return True
    spins = 0
    while _load_atomic(barrier, _ROUND) == turn:
        if _load_atomic(barrier, _BROKEN) != 0:
            return False
        spins += 1
        _pause(barrier, spins)
    return True


@inline
def take(tickets, place):
    """Return the next number of a counter, tickets[place], which no other thread gets."""
    return add_atomic(tickets, place, 1)


@inline
def advance(barrier, rank):
    """Tell the threads that wait for this one that it has finished one more step of this run."""
    add_atomic(barrier, _DONE + _LINE * rank, 1)


@inline
def wait_for(barrier, first, rank, count):
    """Wait until each thread from `first` up to this one has finished `count` steps. Return False if the team was
    broken off.
    """
    for before in range(first, rank):
        spins = 0
        while _load_atomic(barrier, _DONE + _LINE * before) < count:
            if _load_atomic(barrier, _BROKEN) != 0:
                return False
            spins += 1
            _pause(barrier, spins)
    return True


class Watch:
    """A monitor that decides whether a team works together, by how much of their time its threads had a processor."""

    def __init__(self) -> None:
        self._wanted = self._had = 0.0  # seconds of all threads since the last judgement
        self._pause, self._until = _ALONE, 0.0

    def together(self, now: float) -> bool:
        """Return whether the team should use all its threads at this time in seconds."""
        return now >= self._until

    def note(self, now: float, wanted: float, had: float) -> None:
        """Record a run of all threads: the thread-seconds that it took, and those in which threads ran or napped."""
        self._wanted += wanted
        self._had += had
        if self._wanted < _WATCHED:
            return
        if self._had < _LEAST * self._wanted:
            self._until, self._pause = now + self._pause, min(2 * self._pause, _LONGEST)
        else:
            self._pause = _ALONE
        self._wanted = self._had = 0.0


class Team:
    """A team of `size` threads, including the caller's.

    `run(f)` calls f(rank, n, barrier) on n of them, all or only the caller's, and returns when all have finished. It
    raises the exception of a thread. After that, and after `close`, it raises RuntimeError.
    """

    def __init__(self, size: int, watch: Watch | None = None):
        self.size, self._watch = size, watch or Watch()
        self._ran = [0.0] * size  # seconds in which each thread had a processor in the latest run
        self.barrier = np.zeros(_DONE + _LINE * size, np.int64)
        self._work: _Work | None = None
        self._go = [threading.Semaphore(0) for _ in range(size - 1)]
        self._done = threading.Semaphore(0)
        self._lock = threading.Lock()  # guards the start and the end of work
        self._failure: BaseException | None = None
        self._threads = [threading.Thread(target=self._serve, args=(i,), daemon=True) for i in range(size - 1)]
        for thread in self._threads:
            thread.start()

    def run(self, work: _Work, apart: bool = False) -> None:
        """Run `work` on the team.

        `apart` says that its threads hardly wait for each other, so that delays do no harm.
        """
        self._refuse_if_broken()
        began = time.perf_counter()
        self.barrier[_DONE:] = 0
        if self.size == 1 or not (apart or self._watch.together(began)):
            self._try(work, 1)
            return
        naps = int(self.barrier[_NAPS])
        with self._lock:
            self._refuse_if_broken()
            self._work = work
            for go in self._go:
                go.release()
        self._try(work, self.size)
        for _ in self._go:
            self._done.acquire()
        now = time.perf_counter()
        slept = _SLEPT * (int(self.barrier[_NAPS]) - naps)
        if not apart:
            self._watch.note(now, self.size * (now - began), sum(self._ran) + slept)
        if self._failure:
            raise self._failure
        self._refuse_if_broken()

    def _try(self, work: _Work, count: int) -> None:
        before = time.thread_time()
        try:
            work(0, count, self.barrier)
            self._ran[0] = time.thread_time() - before
        except BaseException:
            self.barrier[_BROKEN] = 1
            raise

    def _refuse_if_broken(self) -> None:
        if self.barrier[_BROKEN]:
            raise RuntimeError("a team of threads was broken off")

    def close(self) -> None:
        """End the threads, even in the middle of their work."""
        with self._lock:
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
            before = time.thread_time()
            try:
                work(index + 1, self.size, self.barrier)
                self._ran[index + 1] = time.thread_time() - before
            except BaseException as failure:
                self._failure = failure
                self.barrier[_BROKEN] = 1
            self._done.release()
