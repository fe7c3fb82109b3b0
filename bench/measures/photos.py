"""Compare squeeze with other compressors on JPEG images: Lepton and paq8px, if they are installed, and xz."""

import argparse
import importlib.util
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

_PACKAGES = "matplotlib/mpl-data/sample_data/*.jpg", "sklearn/datasets/images/*.jpg"


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each image; every result of squeeze is decompressed and compared."""
    for path in options.files or images():
        data = path.read_bytes()
        coded = squeeze.compress(data, level=3)
        if squeeze.decompress(coded) != data:
            raise SystemExit(f"Error: {path} did not come back")
        yield {"file": path.name, "raw": len(data), "bytes": len(coded)} | {
            name: tool(path) for name, tool in _tools().items()
        }


def images() -> list[Path]:
    """Return the images of the corpus, and those that come with other packages."""
    folders = {Path(os.environ["SQUEEZE_CORPUS"]): ("**/*.jpg",), Path(get_path("purelib")): _PACKAGES}
    return sorted(path for folder, patterns in folders.items() for p in patterns for path in folder.glob(p))


def _tools() -> dict[str, Callable[[Path], int]]:
    tools: dict[str, Callable[[Path], int]] = {"xz": _xz}
    if importlib.util.find_spec("lepton_jpeg_python"):
        tools["lepton"] = _lepton
    if shutil.which("paq8px"):
        tools["paq8px"] = _paq8px
    return tools


def _xz(path: Path) -> int:
    return len(lzma.compress(path.read_bytes(), preset=9 | lzma.PRESET_EXTREME))


def _lepton(path: Path) -> int:
    from lepton_jpeg_python import compress_bytes

    return len(compress_bytes(path.read_bytes()))


def _paq8px(path: Path) -> int:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["paq8px", "-8", path, Path(folder, "coded")], check=True, capture_output=True)
        return Path(folder, "coded").stat().st_size


def _with_total(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, and one with the sums of what all have."""
    total: Row = {"file": "all"}
    for name in ("raw", "bytes", "xz", "lepton", "paq8px"):
        if all(name in row for row in rows):
            total[name] = sum(row[name] for row in rows)
    return [*rows, total]


MEASURE = Measure(
    rows,
    key=("file",),
    needs=("a corpus",),
    rivals=("paq8px",),
    time=5,
    options=(option("files", nargs="*", type=Path, help="images to measure instead of those of the corpus"),),
    tables={
        "photos": Listing(
            (
                Column("image", "file"),
                Column("bytes", "raw", ","),
                Column("xz -9e", lambda row: row.get("xz"), ","),
                Column("Lepton", lambda row: row.get("lepton"), ","),
                Column("paq8px -8", lambda row: row.get("paq8px"), ","),
                Column("squeeze", "bytes", ","),
                Column("% of the image", lambda row: 100 * row["bytes"] / row["raw"], ".1f"),
            ),
            prepare=_with_total,
        )
    },
)
