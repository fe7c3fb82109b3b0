"""Small files side by side: worker processes do them, and results and messages keep the order of the files.

A worker is a process of `_serve`. It gets tasks from its parent through a pipe, and ends with it.
"""

import io
import os
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from copy import copy
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from squeeze.commands.job import Job
from squeeze.errors import SqueezeError
from squeeze.system import files

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["LARGE", "for_each"]

LEAST_SECONDS = 4.0  # of estimated work, from which worker processes are worth their start
LARGE = 1 << 24  # bytes from which a file has several blocks, for all threads
_COUNTS = ("done", "raw", "coded", "passed_over", "failed", "skipped")
Task = tuple[Path | None, Path | None]
Work = Callable[[Job, Path | None, Path | None, dict[str, Any]], None]


class _Outcome(NamedTuple):
    """The output of a worker for one file, and its changes of the counts of the run."""

    out: str
    err: str
    counts: dict[str, int]


def for_each(job: Job, tasks: Iterable[Task], work: Work, settings: dict[str, Any], seconds: float) -> None:
    """Call work(job, path, target, settings) for each task, one after the other or in worker processes.

    Args:
        job: The run, whose counts are updated.
        tasks: (path, target) of each file; None is standard input or output.
        work: A function of a module, which does a file.
        settings: What `work` takes, sent to the workers.
        seconds: An estimate of the work of one thread on all files that are small.
    """
    if job.threads == 1 or job.stdout or seconds < LEAST_SECONDS:
        for path, target in tasks:
            work(job, path, target, settings)
    else:
        _Pool(job, work, settings).run(list(tasks))


class _Pool:
    """Worker processes, one for each thread that the user allows."""

    def __init__(self, job: Job, work: Work, settings: dict[str, Any]):
        self._job, self._work, self._settings = job, work, settings
        self._sent = copy(job)  # what workers get: without the names of all files
        self._sent.files, self._sent.targets = (), set()
        self._free = SimpleQueue[_Worker]()
        self._workers = list[_Worker]()

    def run(self, tasks: list[Task]) -> None:
        """Do small files by workers and others in this process, and print what they print in the order of tasks."""
        from concurrent.futures import ThreadPoolExecutor  # not at the top: most runs have no workers

        job, size = self._job, sum(_size(path) for path, _ in tasks)
        self._sent.on_terminal = job.prints_each()
        count = min(job.threads, len(tasks))
        with job.progress("files", lambda: size) as tick, ThreadPoolExecutor(max(count, 1)) as pool:
            try:
                for _ in range(count):
                    self._free.put(self._start())
                futures = [pool.submit(self._by_worker, *task) for task in tasks]
                for (path, target), future in zip(tasks, futures, strict=True):
                    with job.attempt(str(path)):
                        if outcome := future.result():
                            _replay(job, outcome)
                        else:
                            self._work(job, path, target, self._settings)
                    tick(_size(path))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            finally:
                for worker in self._workers:
                    worker.end()

    def _start(self) -> "_Worker":
        worker = _Worker()
        self._workers.append(worker)
        return worker

    def _by_worker(self, path: Path | None, target: Path | None) -> _Outcome | None:
        """Return what became of a small file, or None for a large one."""
        if path is None or _size(path) >= LARGE:
            return None
        worker = self._free.get()
        try:
            return worker.call(self._sent, path, target, self._work, self._settings)
        except SqueezeError:
            worker.end()
            if not files.interrupted.is_set():
                worker = self._start()
            raise
        finally:
            self._free.put(worker)


def _replay(job: Job, outcome: _Outcome) -> None:
    """Print what a worker printed, and add its counts to those of the run."""
    click.echo(outcome.out, nl=False)
    click.echo(outcome.err, nl=False, err=True)
    for name, count in outcome.counts.items():
        setattr(job, name, getattr(job, name) + count)


def _size(path: Path | None) -> int:
    try:
        return path.stat().st_size if path else 0
    except (OSError, SqueezeError):
        return 0


class _Worker:
    """A process that does one file at a time."""

    def __init__(self) -> None:
        import multiprocessing

        spawn = multiprocessing.get_context("spawn")
        self._ending = Lock()
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def call(self, job: Job, path: Path, target: Path | None, work: Work, settings: dict[str, Any]) -> _Outcome:
        """Return what became of a file. Raises SqueezeError if the process ended meanwhile."""
        try:
            self._pipe.send((job, path, target, work, settings))
            outcome: _Outcome = self._pipe.recv()
        except (OSError, EOFError) as error:
            raise SqueezeError(f"{path}: the process that worked on it ended: run again with -T1") from error
        return outcome

    def end(self) -> None:
        """End the process. It deletes its unfinished file first. A second thread waits for the end."""
        with self._ending:
            if not self._pipe.closed:
                self._process.terminate()
                self._process.join()
                self._pipe.close()


def _serve(pipe: "Connection") -> None:
    """Do tasks until the parent ends or asks for an end."""
    try:
        with files.interruptible():
            while not files.interrupted.is_set():  # work that was asked to end has tidied up, and returned
                job, path, target, work, settings = pipe.recv()
                pipe.send(_do(job, path, target, work, settings))
    except (EOFError, KeyboardInterrupt, OSError):
        pass
    os._exit(1)


def _do(job: Job, path: Path, target: Path | None, work: Work, settings: dict[str, Any]) -> _Outcome:
    job.threads, before = 1, {name: int(getattr(job, name)) for name in _COUNTS}
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        work(job, path, target, settings)
    return _Outcome(out.getvalue(), err.getvalue(), {name: getattr(job, name) - before[name] for name in _COUNTS})
