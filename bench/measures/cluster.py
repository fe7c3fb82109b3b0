"""Compress files with one and with two workers of a local Ray cluster, compared with the same command without a
cluster. The runs take turns, so that other load on the machine affects all of them.
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
from pathlib import Path
from zlib import crc32

from bench.measure import Measure, Row, option
from bench.tables import Column, Listing

_LARGE = 1 << 22  # bytes of the one large file


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


def time_run(folder: Path, level: str, *arguments: str) -> tuple[float, float]:
    """Return the seconds to compress a copy of a folder, and the CPU time of the command itself.

    Args:
        folder: folder that is copied and compressed
        level: option of the level, such as "-3"
        arguments: further options of the command
    """
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        copy = shutil.copytree(folder, Path(name, "copy"))
        before, started = os.times(), time.perf_counter()
        subprocess.run([sys.executable, "-m", "squeeze", "compress", "-r", "-q", level, *arguments, copy], check=True)
        passed, after = time.perf_counter() - started, os.times()
        return passed, sum(after[2:4]) - sum(before[2:4])


def rows(options: argparse.Namespace) -> Iterator[Row]:
    import ray

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "corpus")
        size = corpus(folder, options.bytes)
        for level in options.levels.split(","):
            runs: dict[str, list[tuple[float, float]]] = {"without": [], "1": [], "2": []}
            for _ in range(options.runs):
                runs["without"].append(time_run(folder, f"-{level}", "-T", "1"))
                for workers in ("1", "2"):
                    context = ray.init(num_cpus=int(workers), include_dashboard=False, log_to_driver=False)
                    os.environ["RAY_ADDRESS"] = context.address_info["address"]
                    runs[workers].append(time_run(folder, f"-{level}", "--cluster", "auto"))
                    ray.shutdown()
                    del os.environ["RAY_ADDRESS"]
            (none, _), (one, driver), (two, _) = (min(runs[key]) for key in ("without", "1", "2"))
            yield {
                "level": int(level),
                "raw": size,
                "files": len(list(folder.iterdir())),
                "without": round(none, 1),
                "one worker": round(one, 1),
                "two workers": round(two, 1),
                "two of one": round(one / two, 3),
                "driver, processor": round(driver, 1),
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
                Column("driver load", lambda row: f"{100 * row['driver, processor'] / row['one worker']:.1f} %"),
            ),
            order=lambda row: row["level"],
        )
    },
)
