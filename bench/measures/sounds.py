"""Compare squeeze with other compressors on sounds: FLAC and paq8px, if they are installed, and xz."""

import argparse
import lzma
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from sysconfig import get_path

import squeeze
from bench.measure import Measure, Row, option
from bench.tables import Column, Listing

_LEVELS = (3, 6)
_TEST_DATA = "test/audiodata/*.wav"  # comes with Python


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each sound; every result of squeeze is decompressed and compared."""
    for path in options.files or sounds():
        data = path.read_bytes()
        row: Row = {"file": path.name, "raw": len(data)}
        for level in _LEVELS:
            coded = squeeze.compress(data, level=level)
            if squeeze.decompress(coded) != data:
                raise SystemExit(f"Error: {path} did not come back")
            row[f"level {level}"] = len(coded)
        yield row | {name: tool(path) for name, tool in _tools().items()}


def sounds() -> list[Path]:
    """Return the sounds of the corpus, and those of Python's tests."""
    folders = {Path(os.environ["SQUEEZE_CORPUS"]): "**/*.wav", Path(get_path("stdlib")): _TEST_DATA}
    return sorted(path for folder, pattern in folders.items() for path in folder.glob(pattern))


def _tools() -> dict[str, Callable[[Path], int]]:
    tools: dict[str, Callable[[Path], int]] = {"xz": _xz}
    if shutil.which("flac"):
        tools["flac"] = _flac
    if shutil.which("paq8px"):
        tools["paq8px"] = _paq8px
    return tools


def _xz(path: Path) -> int:
    return len(lzma.compress(path.read_bytes(), preset=9 | lzma.PRESET_EXTREME))


def _flac(path: Path) -> int:
    command = ["flac", "-8", "--silent", "--stdout", str(path)]
    return len(subprocess.run(command, check=True, capture_output=True).stdout)


def _paq8px(path: Path) -> int:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["paq8px", "-8", path, Path(folder, "coded")], check=True, capture_output=True)
        return Path(folder, "coded").stat().st_size


def _with_total(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, and one with the sums of what all have."""
    total: Row = {"file": "all"}
    for name in ("raw", "level 3", "level 6", "xz", "flac", "paq8px"):
        if all(name in row for row in rows):
            total[name] = sum(row[name] for row in rows)
    return [*rows, total]


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
            prepare=_with_total,
        )
    },
)
