"""`squeeze pack` and `squeeze unpack` of one large tensor of random weights in bf16, as processes, beside `cp` of the
same file: seconds, and the memory that a process holds at most beyond what the interpreter with its packages does."""

import argparse
import filecmp
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.entry import Row

_PIECE = 1 << 22  # values
_IMPORTS = "import squeeze.packing.pack, squeeze.packing.unpack, squeeze.cli, squeeze.commands.pack"


def rows(options: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="squeeze-bench-", dir=options.folder) as name:
        source, packed, back = (Path(name, f"{word}.safetensors") for word in ("source", "packed", "back"))
        write(source, round(options.gigabytes * 1e9) // 2, options.zeros)
        _, idle = run(sys.executable, "-c", _IMPORTS)
        for level in options.levels.split(","):
            copying, packing, unpacking = [], [], []
            for _ in range(options.runs):
                copying.append(run("cp", source, back)[0])
                back.unlink()
                packing.append(squeeze("pack", "-f", "--level", level, f"-T{options.threads}", source, packed))
                unpacking.append(squeeze("unpack", "-f", f"-T{options.threads}", packed, back))
            if not filecmp.cmp(source, back, shallow=False):
                raise SystemExit("Error: the round trip changed the bytes")
            back.unlink()
            row: Row = {"level": level, "gigabytes": options.gigabytes, "threads": options.threads}
            row |= {"zeros": options.zeros, "raw": source.stat().st_size, "packed": packed.stat().st_size}
            row["cp"] = median(copying)
            for way, runs in (("pack", packing), ("unpack", unpacking)):
                row[way] = median([seconds for seconds, _ in runs])
                row[f"{way}, memory"] = max(memory for _, memory in runs) - idle
            yield row


def write(path: Path, count: int, zeros: float) -> None:
    """A file of one tensor of normal weights, of which this share is 0."""
    entry = {"dtype": "BF16", "shape": [count], "data_offsets": [0, 2 * count]}
    text = json.dumps({"weight": entry}).encode()
    text += b" " * (-len(text) % 8)
    generator = np.random.default_rng(0)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for begin in range(0, count, _PIECE):
            values = generator.standard_normal(min(_PIECE, count - begin), np.float32) * np.float32(0.02)
            if zeros:
                values[generator.random(values.size, np.float32) < zeros] = 0
            file.write((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())


def squeeze(*arguments: object) -> tuple[float, int]:
    return run(sys.executable, "-m", "squeeze", *arguments, "-q")


def run(*arguments: object) -> tuple[float, int]:
    """Seconds, and the most bytes that the process held in memory."""
    start = time.perf_counter()
    with subprocess.Popen([str(argument) for argument in arguments]) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"Error: {arguments[0]} exited with {process.returncode}")
    return round(time.perf_counter() - start, 3), 1024 * usage.ru_maxrss


def median(values: list[float]) -> float:
    return float(np.median(values))
