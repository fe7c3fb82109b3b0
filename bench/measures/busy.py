"""How long `squeeze compress` of a small text takes, with verification: alone, and beside processes that only compute.

Quiet and busy runs take turns, and the medians count. The kernels are compiled before.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.entry import Row
from bench.shared.texts import read

_COMPUTING = "while True: pass"


def rows(options: argparse.Namespace) -> Iterator[Row]:
    data = read(options.file, "alice29.txt", options.measured)
    about = {"file": options.file.name if options.file else "alice29.txt", "of": len(data), "threads": options.threads}
    for level in map(int, options.levels.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "text")
            source.write_bytes(data)
            seconds: dict[int, list[float]] = {0: [], options.busy: []}
            _compress(source, level, options.threads)
            for _ in range(options.repeat):
                for count, found in seconds.items():
                    with _computing(count):
                        found.append(_compress(source, level, options.threads))
        quiet = statistics.median(seconds[0])
        for count, found in seconds.items():
            beside = f"{count} processes" if count else "nothing"
            median = statistics.median(found)
            yield {
                **about,
                "level": level,
                "beside": beside,
                "compress": round(median, 2),
                "ratio": round(median / quiet, 3),
            }


def _compress(source: Path, level: int, threads: int) -> float:
    begin = time.perf_counter()
    command = [sys.executable, "-m", "squeeze", "compress", f"-{level}", f"-T{threads}", "-q", "-f", str(source)]
    subprocess.run(command, check=True)
    return time.perf_counter() - begin


@contextmanager
def _computing(count: int) -> Iterator[None]:
    """So many processes that compute, until this ends."""
    with ExitStack() as stack:
        for _ in range(count):
            process = subprocess.Popen([sys.executable, "-c", _COMPUTING])
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield
