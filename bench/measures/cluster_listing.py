"""The driver's memory for a prefix of many objects, which are listed, planned and noted; what workers do is left out.

`python -m bench.measures.cluster_listing N [SHARDS]` measures N objects, or their shards of so many bytes, in a process
of its own, so that its peak is its own.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from array import array
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.entry import Row


def rows(options: argparse.Namespace) -> Iterator[Row]:
    for number in options.objects.split(","):
        command = [sys.executable, "-m", "bench.measures.cluster_listing", number, *filter(None, [options.shards])]
        yield json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


class _Nothing:
    """An engine whose workers say at once that all is done."""

    processors = 1000.0

    def __init__(self) -> None:
        self._waiting: deque[Any] = deque()

    def share(self, value: Any) -> Any:
        return value

    def at_once(self, needs: Any) -> float:
        return self.processors

    def has_room(self, needs: Any) -> bool:
        return len(self._waiting) < 2 * self.processors

    @property
    def is_busy(self) -> bool:
        return bool(self._waiting)

    def submit(self, call: Any) -> None:
        self._waiting.append(call)

    def next(self, timeout: float | None = None) -> tuple[Any, Any, None]:
        from squeeze.cluster.files import Done
        from squeeze.cluster.shards import Result
        from squeeze.shards.plan import Planned

        call = self._waiting.popleft()
        work = call.arguments[0]
        if isinstance(work, Planned):
            raw, checksums = sum(source.size for source in work.sources), array("Q", [0] * len(work.sources))
            return call, Result(raw, raw // 2, 1 << 10, checksums, checksum="0" * 16), None
        return call, [Done(file, file.size, 900, f"{hash(file):016x}") for file in work], None

    def close(self) -> None:
        pass


def main(number: int, shards: str = "") -> None:
    from click.testing import CliRunner

    from bench.shared import generated_store
    from squeeze.cli import main as command
    from squeeze.cluster import engine

    engine.connect = lambda address: _Nothing()  # type: ignore[assignment, return-value]
    before = resource.getrusage(resource.RUSAGE_SELF)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        arguments = ["compress", "-1", "-r", "-q", "--cluster", "local", f"generated://corpus-{number}"]
        if shards:
            arguments += ["--shards", shards, "-o", "part-{}.tar.sqz"]
        done = CliRunner().invoke(command, arguments)
        manifest = Path("part-manifest.jsonl" if shards else ".squeeze-compress.jsonl").stat().st_size
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert done.exit_code == 0 and generated_store.Generated.listed == number, done.output
    row = {
        "objects": number,
        "shards": shards,
        "peak": after.ru_maxrss << 10,
        "grew": (after.ru_maxrss - before.ru_maxrss) << 10,
        "seconds": round(seconds, 1),
        "processor": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "manifest": manifest,
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:3])
