"""Compare squeeze with other compressors on JPEG images: Lepton and paq8px, if they are installed, and xz."""

import argparse
import importlib.util
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from sysconfig import get_path

from bench.measure import Measure, Row, option
from bench.shared.media_files import ours, theirs, with_total
from bench.tables import Column, Listing

_PACKAGES = "matplotlib/mpl-data/sample_data/*.jpg", "sklearn/datasets/images/*.jpg"


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each image."""
    lepton = {"lepton": _lepton} if importlib.util.find_spec("lepton_jpeg_python") else {}
    for path in options.files or images():
        data = path.read_bytes()
        yield {"file": path.name} | ours(path.name, data, {"bytes": 3}) | theirs(data, lepton)


def images() -> list[Path]:
    """Return the images of the corpus, and those that come with other packages."""
    folders = {Path(os.environ["SQUEEZE_CORPUS"]): ("**/*.jpg",), Path(get_path("purelib")): _PACKAGES}
    return sorted(path for folder, patterns in folders.items() for p in patterns for path in folder.glob(p))


def _lepton(data: bytes) -> int:
    from lepton_jpeg_python import compress_bytes

    return len(compress_bytes(data))


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
            prepare=partial(with_total, columns=("raw", "bytes", "xz", "lepton", "paq8px")),
        )
    },
)
