"""What a second thread brings to levels 4 to 6 on a file of one block: compressing and verifying, by the clock.

One and two threads take turns, warmed up, and the shortest times count. The bytes must be the same.
"""

import argparse
import time
from collections.abc import Iterator
from typing import Any

import squeeze
from bench.entry import Row
from bench.shared.texts import read, text


def rows(options: argparse.Namespace) -> Iterator[Row]:
    name = text(options.file, "enwik8.1m").name
    data = read(options.file, "enwik8.1m", options.bytes)
    for level in map(int, options.levels.split(",")):
        for threads in (1, 2):
            squeeze.compress(data[:3000], level, threads=threads)  # loads what is compiled
        for verify in (False, True):
            taken = {threads: min(both) for threads, both in _turns(data, level, verify, options.runs).items()}
            row = {"file": name, "raw": len(data), "level": level, "verified": verify}
            yield row | {"KB/s": round(len(data) / 1e3 / taken[1], 1), "gain": round(taken[1] / taken[2], 2)}


def _turns(data: bytes, level: int, verify: bool, runs: int) -> dict[int, list[float]]:
    """Seconds of each number of threads."""
    taken: dict[int, list[Any]] = {1: [], 2: []}
    written = set()
    for _ in range(runs):
        for threads, seconds in taken.items():
            begin = time.perf_counter()
            written.add(squeeze.compress(data, level, threads=threads, verify=verify))
            seconds.append(time.perf_counter() - begin)
    assert len(written) == 1, "two threads write other bytes than one"
    return taken
