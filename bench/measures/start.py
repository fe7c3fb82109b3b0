"""What a small file costs: `squeeze compress` of 2 KB with its proof, as a whole process. Code was compiled before.

The programs take turns, and medians count. The dictionary is trained on text/enwik8.1m of the corpus. Its first use
reads its text, and keeps in a cache of its own what that leaves behind; the second finds it there.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import squeeze
from bench.entry import Row
from bench.measures.install import processor_seconds
from bench.shared.texts import read, text

FIRST, SECOND = "first use", "second use"


def rows(options: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, coded = folder / "text", folder / "text.sqz"
        source.write_bytes(read(None, "alice29.txt", options.measured))
        programs = dict(_programs(options, folder, source, coded))
        sizes: dict[str, int] = {}
        spent: dict[str, list[tuple[float, float]]] = {program: [] for program in programs}
        for turn in range(options.repeat + 1):
            for program, command in programs.items():
                times = _run(program, command, folder / "cache")
                if turn:  # the first compiles
                    spent[program].append(times)
                if str(coded) in command:
                    sizes[program] = coded.stat().st_size
        for program, found in spent.items():
            seconds, processor = (round(statistics.median(column), 3) for column in zip(*found, strict=True))
            row = {"program": program, "of": options.measured, "seconds": seconds, "processor": processor}
            yield row | ({"bytes": sizes[program]} if program in sizes else {})


def _programs(options: argparse.Namespace, folder: Path, source: Path, coded: Path) -> Iterator[tuple[str, list[str]]]:
    compress = [sys.executable, "-m", "squeeze", "compress", "-qf", str(source), "-o", str(coded)]
    yield "python -c 'import numpy'", [sys.executable, "-c", "import numpy"]
    for level in options.levels.split(","):
        yield f"squeeze -{level}", [*compress, f"-{level}"]
    if size := options.dictionary:
        own, samples = folder / "own.sqzp", text(None, "enwik8.1m")
        squeeze.train([samples], own, level=5, text_size=size, learn_size=1 << 16)
        for use in (FIRST, SECOND):
            yield f"squeeze -5, dictionary of {size >> 10:,} KiB, {use}", [*compress, "-D", str(own)]


def _run(program: str, command: list[str], cache: Path) -> tuple[float, float]:
    """Seconds, and seconds of processors."""
    own = {"SQUEEZE_CACHE": str(cache)} if program.endswith((FIRST, SECOND)) else {}
    if program.endswith(FIRST):
        shutil.rmtree(cache, ignore_errors=True)
    begin, before = time.perf_counter(), processor_seconds()
    subprocess.run(command, check=True, env=os.environ | own)
    return time.perf_counter() - begin, processor_seconds() - before
