"""What a small file costs: `squeeze compress` of 2 KB with its proof, as a whole process. Code was compiled before.

The programs take turns, and medians count.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.entry import Row
from bench.measures.install import processor_seconds
from bench.shared.texts import read


def rows(options: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        source, coded = Path(folder, "text"), Path(folder, "text.sqz")
        source.write_bytes(read(None, "alice29.txt", options.measured))
        levels = [f"-{level}" for level in options.levels.split(",")]
        programs = {"python -c 'import numpy'": [sys.executable, "-c", "import numpy"]} | {
            f"squeeze {level}": [
                sys.executable,
                "-m",
                "squeeze",
                "compress",
                level,
                "-qf",
                str(source),
                "-o",
                str(coded),
            ]
            for level in levels
        }
        sizes: dict[str, int] = {}
        spent: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
        for turn in range(options.repeat + 1):
            for name, command in programs.items():
                begin, before = time.perf_counter(), processor_seconds()
                subprocess.run(command, check=True)
                if turn:  # the first compiles
                    spent[name].append((time.perf_counter() - begin, processor_seconds() - before))
                if str(coded) in command:
                    sizes[name] = coded.stat().st_size
        for name, found in spent.items():
            seconds, processor = (round(statistics.median(column), 3) for column in zip(*found, strict=True))
            row = {"program": name, "of": options.measured, "seconds": seconds, "processor": processor}
            yield row | ({"bytes": sizes[name]} if name in sizes else {})
