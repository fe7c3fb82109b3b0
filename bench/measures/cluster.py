"""Files by one worker of a local Ray cluster and by two, beside the same command without a cluster.

One after another in turns, so that what else the machine does meets all of them. The workers are warm.
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

from bench.entry import Row

_LARGE = 1 << 22  # bytes of the one large file


def corpus(folder: Path, size: int) -> int:
    """Sources of Python's own library, so many bytes of them or all, and one large file of the first of them; the bytes
    written."""
    folder.mkdir()
    total, large = 0, bytearray()
    for source in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" in source.parts or total + len(large) >= size:
            continue
        data = source.read_bytes()
        if len(large) < min(_LARGE, size // 4):
            large += data
            continue
        (folder / f"{total:010d}.py").write_bytes(data)
        total += len(data)
    (folder / "large").write_bytes(large)
    return total + len(large)


def seconds_of(folder: Path, level: str, *arguments: str) -> float:
    """Of compressing a copy of a folder."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        copy = Path(name, "copy")
        shutil.copytree(folder, copy)
        command = [sys.executable, "-m", "squeeze", "compress", "-r", "-q", level, *arguments, copy]
        started = time.perf_counter()
        subprocess.run(command, check=True)
        return time.perf_counter() - started


def rows(options: argparse.Namespace) -> Iterator[Row]:
    import ray

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "corpus")
        size = corpus(folder, options.bytes)
        for level in options.levels.split(","):
            seconds: dict[str, list[float]] = {"without": [], "1": [], "2": []}
            for _ in range(options.runs):
                seconds["without"].append(seconds_of(folder, f"-{level}", "-T", "1"))
                for workers in ("1", "2"):
                    context = ray.init(num_cpus=int(workers), include_dashboard=False, log_to_driver=False)
                    os.environ["RAY_ADDRESS"] = context.address_info["address"]
                    small = Path(name, "small")
                    corpus(small, 1 << 16)
                    seconds_of(small, f"-{level}", "--cluster", "auto")
                    shutil.rmtree(small)
                    seconds[workers].append(seconds_of(folder, f"-{level}", "--cluster", "auto"))
                    ray.shutdown()
                    del os.environ["RAY_ADDRESS"]
            best = {key: min(times) for key, times in seconds.items()}
            yield {
                "level": int(level),
                "raw": size,
                "files": len(list(folder.iterdir())),
                "without": round(best["without"], 1),
                "one worker": round(best["1"], 1),
                "two workers": round(best["2"], 1),
                "two of one": round(best["1"] / best["2"], 3),
                "overhead": round(best["1"] / best["without"] - 1, 4),
            }
