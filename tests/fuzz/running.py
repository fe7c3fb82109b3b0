"""Thousands of cases in processes of their own, which may neither hang, nor take much memory, nor end the run.

A worker is forked from a process that has imported and compiled everything. It is ended by an alarm where a case takes
too long, and memory beyond a limit is not given to it. Where it ends, the next one goes on behind the case that ended
it, which is judged by the signal.
"""

import json
import os
import resource
import selectors
import shutil
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.judging import CRASH, FAULTS, HANG, LIMITS, MEMORY, Format, Verdict, judge

WORKERS = 2
SECONDS = 30  # from which on a case hangs
_SLACK = 128 << 20  # bytes beside what the limit of memory allows
_SIGNALS = {signal.SIGALRM: HANG, signal.SIGKILL: MEMORY}


@dataclass
class Result:
    """The outcomes of the cases of a format."""

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[tuple[int, Verdict]] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def cases(self) -> int:
        return self.counts.total()

    def note(self, number: int, verdict: Verdict) -> None:
        self.counts[verdict.kind] += 1
        if verdict.kind in FAULTS:
            self.faults.append((number, verdict))
        else:
            self.refusals[verdict.where] += 1


def environment() -> dict[str, str]:
    """The variables that a run needs before anything is imported: bounds are checked in compiled code, whose cache is
    its own, and one thread does everything."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return {
        "NUMBA_BOUNDSCHECK": "1",
        "NUMBA_CACHE_DIR": os.environ.get("SQUEEZE_FUZZ_CACHE") or str(base / "squeeze-fuzz"),
        "OMP_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "2",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }


@dataclass
class _Worker:
    pid: int
    reading: int
    cases: range  # that are its own
    left: int  # of them, the place of the next
    text: bytes = b""


def run(form: Format, cases: range, seed: int, until: float = float("inf")) -> Result:
    """The cases of these numbers, or as many as are begun before the time `until`."""
    result, begun = Result(form.name), time.monotonic()
    shares = [range(cases.start + i, cases.stop, WORKERS) for i in range(WORKERS)]
    workers = [_start(form, share, 0, seed, until) for share in shares if len(share)]
    with selectors.DefaultSelector() as ready:
        for worker in workers:
            ready.register(worker.reading, selectors.EVENT_READ, worker)
        while ready.get_map():
            for key, _ in ready.select():
                _take(ready, key.data, result, form, seed, until)
    result.seconds = time.monotonic() - begun
    result.faults.sort(key=lambda fault: fault[0])
    return result


def _take(
    ready: selectors.BaseSelector, worker: _Worker, result: Result, form: Format, seed: int, until: float
) -> None:
    """Note what a worker reports. If it ends by a fault, another one continues."""
    said = os.read(worker.reading, 1 << 16)
    *lines, worker.text = (worker.text + said).split(b"\n")
    for line in lines:
        result.note(worker.cases[worker.left], Verdict(*json.loads(line)))
        worker.left += 1
    if said:
        return
    ready.unregister(worker.reading)
    os.close(worker.reading)
    status = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
    if status == 0:
        return
    if worker.left < len(worker.cases):
        name = signal.Signals(-status).name if status < 0 else f"exit {status}"
        result.note(worker.cases[worker.left], Verdict(_SIGNALS.get(-status, CRASH), name))
    following = _start(form, worker.cases, worker.left + 1, seed, until)
    ready.register(following.reading, selectors.EVENT_READ, following)


def _start(form: Format, cases: range, left: int, seed: int, until: float) -> _Worker:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return _Worker(pid, reading, cases, left)
    status = 1
    try:
        os.close(reading)
        _work(form, cases[left:], seed, until, writing)
        status = 0
    finally:
        os._exit(status)


def _work(form: Format, cases: range, seed: int, until: float, writing: int) -> None:
    """Judge each case in the worker, and report it in a line."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    assert LIMITS.memory is not None
    most = _address_space() + LIMITS.memory + _SLACK
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    folder = Path(tempfile.mkdtemp(prefix="squeeze-fuzz-"))
    os.environ["SQUEEZE_CACHE"] = str(folder / "inside" / "cache")
    os.chdir(folder)
    try:
        for number in cases:
            if time.monotonic() > until:
                break
            verdict = judged(form, seed, number, folder)
            os.write(writing, json.dumps([verdict.kind, verdict.where, verdict.detail]).encode() + b"\n")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def judged(form: Format, seed: int, number: int, folder: Path) -> Verdict:
    """Return the outcome of a case in an empty folder, which the alarm ends."""
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    (folder / "inside").mkdir()
    try:
        return judge(form, seed, number, folder)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _address_space() -> int:
    """Bytes of it that this process has taken."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
