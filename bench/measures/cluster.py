"""Compress files with one and with two workers of a local Ray cluster, compared with the same command without a
cluster.

The runs take turns, so that other load on the machine affects all of them. Two simultaneous commands, each with all
files, show what the cores can do without a cluster. The CPU time of each worker is measured as well.
"""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from bench.measure import Measure, Row, option
from bench.tables import Column, Listing

_LARGE = 1 << 22  # bytes of the one large file
_EVERY = 0.1  # seconds between two looks at the workers
_CALLS = ("ray::compress", "ray::join", "ray::IDLE")


def corpus(folder: Path, size: int) -> int:
    """Write files of Python's library in a mixed order, and one large file. Return the number of bytes written.

    Args:
        folder: new folder for the files
        size: approximate total in bytes; fewer if the library has fewer
    """
    folder.mkdir()
    library = Path(sysconfig.get_path("stdlib"))
    total, large = 0, bytearray()
    for source in sorted(library.rglob("*"), key=lambda path: crc32(bytes(path.relative_to(library)))):
        left_out = "site-packages" in source.parts or source.suffix == ".a" or not source.is_file()
        if left_out or total + len(large) >= size:
            continue
        data = source.read_bytes()
        if len(large) < min(_LARGE, size // 4):
            large += data
            continue
        (folder / f"{total:010d}{source.suffix}").write_bytes(data)
        total += len(data)
    (folder / "large").write_bytes(large)
    return total + len(large)


@dataclass(frozen=True)
class Times:
    """Wall-clock time of a command, and CPU time of the command and of each Ray worker, in seconds.

    Workers are sorted by CPU time: Ray may start more workers than there are cores.
    """

    passed: float
    command: float
    workers: list[float]


def time_run(folder: Path, level: str, *arguments: str) -> Times:
    """Measure the time to compress a copy of a folder.

    Args:
        folder: folder that is copied and compressed
        level: option of the level, such as "-3"
        arguments: further options of the command
    """
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        copy = Path(name, "copy")
        shutil.copytree(folder, copy)
        command = [sys.executable, "-m", "squeeze", "compress", "-r", "-q", level, *arguments, copy]
        before, started, workers = os.times(), time.perf_counter(), dict[int, float]()
        with subprocess.Popen(command) as running:
            while running.poll() is None:
                workers |= worker_seconds()
                time.sleep(_EVERY)
        if running.returncode:
            raise SystemExit("Error: the files were not compressed")
        passed, after = time.perf_counter() - started, os.times()
        return Times(passed, sum(after[2:4]) - sum(before[2:4]), sorted(workers.values()))


def time_two_commands(folder: Path, level: str) -> float:
    """Return the seconds until two commands of one thread each have both compressed a copy of a folder."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        copies = [shutil.copytree(folder, Path(name, copy)) for copy in ("a", "b")]
        command = [sys.executable, "-m", "squeeze", "compress", "-r", "-q", level, "-T", "1"]
        started = time.perf_counter()
        running = [subprocess.Popen([*command, copy]) for copy in copies]
        if sum(process.wait() for process in running):
            raise SystemExit("Error: the files were not compressed")
        return time.perf_counter() - started


def worker_seconds() -> dict[int, float]:
    """Return the CPU seconds of Ray workers below this process that compress, by process number."""
    import psutil

    found = {}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.cmdline()[:1] and process.cmdline()[0].startswith(_CALLS):
                used = process.cpu_times()
                found[process.pid] = float(used.user + used.system)
    return found


def rows(options: argparse.Namespace) -> Iterator[Row]:
    import ray

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "corpus")
        size = corpus(folder, options.bytes)
        for level in options.levels.split(","):
            runs: dict[str, list[Times]] = {"without": [], "1": [], "2": []}
            together = []
            for _ in range(options.runs):
                together.append(time_two_commands(folder, f"-{level}"))
                runs["without"].append(time_run(folder, f"-{level}", "-T", "1"))
                for workers in ("1", "2"):
                    context = ray.init(num_cpus=int(workers), include_dashboard=False, log_to_driver=False)
                    os.environ["RAY_ADDRESS"] = context.address_info["address"]
                    runs[workers].append(time_run(folder, f"-{level}", "--cluster", "auto"))
                    ray.shutdown()
                    del os.environ["RAY_ADDRESS"]
            none, one, two = (min(runs[key], key=lambda run: run.passed) for key in ("without", "1", "2"))
            yield {
                "level": int(level),
                "raw": size,
                "files": len(list(folder.iterdir())),
                "without": round(none.passed, 1),
                "one worker": round(one.passed, 1),
                "two workers": round(two.passed, 1),
                "two of one": round(one.passed / two.passed, 3),
                "two commands of one": round(2 * none.passed / min(together), 3),
                "without, processor": round(none.command, 1),
                "one worker, processor": round(one.workers[-1], 1),
                "driver, processor": round(one.command, 1),
                "two workers, processor": [round(worker, 1) for worker in two.workers[-2:]],
                "two of one, processor": round(one.workers[-1] / two.workers[-1], 3),
            }


MEASURE = Measure(
    rows,
    key=("level",),
    needs=("ray",),
    time=20,
    options=(
        option("--bytes", type=int, default=20_000_000, help="bytes of the corpus, default: 20000000"),
        option("--levels", default="1,3", help="levels, separated by commas, default: 1,3"),
        option("--runs", type=int, default=2, help="runs, of which the fastest counts, default: 2"),
    ),
    tables={
        "cluster": Listing(
            (
                Column("level", lambda row: -row["level"]),
                Column("files", "files", ","),
                Column("bytes", "raw", ","),
                Column("no cluster, s", "without", ".1f"),
                Column("1 worker, s", "one worker", ".1f"),
                Column("2 workers, s", "two workers", ".1f"),
                Column("speed-up", "two of one", ".2f"),
                Column("of two commands", "two commands of one", ".2f"),
                Column("speed-up by CPU time", "two of one, processor", ".2f"),
                Column("driver load", lambda row: f"{100 * row['driver, processor'] / row['one worker']:.1f} %"),
            ),
            order=lambda row: row["level"],
        )
    },
)
