"""Compare squeeze with other compressors on sounds: FLAC and paq8px, if they are installed, and xz."""

import argparse
import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from sysconfig import get_path

from bench.measure import Measure, Row, option
from bench.shared.media_files import ours, theirs, with_total
from bench.tables import Column, Listing

_LEVELS = {"level 3": 3, "level 6": 6}
_TEST_DATA = "test/audiodata/*.wav"  # comes with Python


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each sound."""
    flac = {"flac": _flac} if shutil.which("flac") else {}
    for path in options.files or sounds():
        data = path.read_bytes()
        yield {"file": path.name} | ours(path.name, data, _LEVELS) | theirs(data, flac)


def sounds() -> list[Path]:
    """Return the sounds of the corpus, and those of Python's tests."""
    folders = {Path(os.environ["SQUEEZE_CORPUS"]): "**/*.wav", Path(get_path("stdlib")): _TEST_DATA}
    return sorted(path for folder, pattern in folders.items() for path in folder.glob(pattern))


def _flac(data: bytes) -> int:
    command = ["flac", "-8", "--silent", "--stdout", "-"]
    return len(subprocess.run(command, input=data, check=True, capture_output=True).stdout)


MEASURE = Measure(
    rows,
    key=("file",),
    needs=("a corpus",),
    rivals=("flac", "paq8px"),
    time=5,
    options=(option("files", nargs="*", type=Path, help="sounds to measure instead of those of the corpus"),),
    tables={
        "sounds": Listing(
            (
                Column("sound", "file"),
                Column("bytes", "raw", ","),
                Column("xz -9e", "xz", ","),
                Column("FLAC -8", lambda row: row.get("flac"), ","),
                Column("paq8px -8", lambda row: row.get("paq8px"), ","),
                Column("squeeze -3", "level 3", ","),
                Column("squeeze -6", "level 6", ","),
                Column("-6, % of paq8px", lambda row: 100 * row["level 6"] / row["paq8px"], ".1f"),
            ),
            prepare=partial(with_total, columns=("raw", *_LEVELS, "xz", "flac", "paq8px")),
        )
    },
)
