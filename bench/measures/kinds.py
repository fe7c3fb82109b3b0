"""Compare squeeze with other compressors by kind of file, and with one that is made for that kind.

Most files are of the corpus or come with Python packages. The log is that of the machine, and arrays are made. Results
are decompressed and compared, except those of paq8px and of the compressors for one kind, to save time.
"""

import argparse
import importlib.util
import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from sysconfig import get_path

import numpy as np

from bench.measure import Measure, Row, option
from bench.measures.sizes import choose_tools
from bench.shared.texts import find_file
from bench.tables import Column, Listing, sums

_OURS = ("squeeze -3", "squeeze -6")
_PAQ8PX = "paq8px -8"
_TOOLS = ("xz -9e", "zstd -19 long", "brotli -q 11", "zpaq -m5", _PAQ8PX)
_FILES = {  # of the corpus, or with a path
    "text": "alice29.txt",
    "source code": "fields.c",
    "markup": "cp.html",
    "JSON": "twitter.json",
    "log": "/var/log/dpkg.log",
    "CSV": "athletes.csv",
    "program for SPARC": "sum",
    "spreadsheet": "kennedy.xls",
    "fax": "ptt5",
}
_SOUND, _PHOTO, _IMAGE, _ARRAY = "sound", "photo", "24-bit image", "array"
_FOLDERS = {  # patterns below folders of Python
    "library": ("purelib", "numpy/random/_mt19937*.so"),
    "font": ("purelib", "matplotlib/mpl-data/fonts/ttf/cm[rs]*10.ttf"),
    _SOUND: ("stdlib", "test/audiodata/*.wav"),
    _PHOTO: ("purelib", "sklearn/datasets/images/flower.jpg"),
}
_SLOW = 400_000  # bytes of the largest file for paq8px
_COUNT, _SIDE = 8_000, 256  # numbers of an array, and pixels on the side of an image
_CUT, _MOST = ("JSON", "log", "CSV"), 200_000  # kinds of which the first bytes are measured


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each file, with the bytes of each tool that is installed."""
    tools = choose_tools("3,6", "xz,zstd,brotli,zpaq")
    for kind, name, data in files():
        if options.only not in kind:
            continue
        row: Row = {"kind": kind, "file": name, "raw": len(data)}
        with tempfile.TemporaryDirectory(prefix="squeeze-bench-") as folder:
            path = Path(folder, f"raw{Path(name).suffix}")
            path.write_bytes(data)
            for tool in tools:
                row[tool.name], *_ = tool.run(path)
            if shutil.which("paq8px") and len(data) <= _SLOW:
                subprocess.run(["paq8px", "-8", path, f"{path}.paq"], check=True, capture_output=True)
                row[_PAQ8PX] = Path(f"{path}.paq").stat().st_size
            yield row | specialist(kind, name, path)


def files() -> Iterator[tuple[str, str, bytes]]:
    """Yield kind, name and content of each file."""
    for kind, name in _FILES.items():
        path = Path(name)
        path = path if path.is_absolute() else find_file(path)
        if path.exists():
            yield kind, path.name, path.read_bytes()[: _MOST if kind in _CUT else None]
    for kind, (scheme, pattern) in _FOLDERS.items():
        for path in sorted(Path(get_path(scheme)).glob(pattern)):
            yield kind, path.name, path.read_bytes()
            if kind == _PHOTO:
                yield _IMAGE, f"{path.stem}.ppm", pixels(path)
    for name, array in arrays().items():
        yield _ARRAY, name, array.tobytes()


def pixels(path: Path) -> bytes:
    """Return the middle of a photo as a PPM file."""
    from PIL import Image

    out = io.BytesIO()
    with Image.open(path) as image:
        left, top = (image.width - _SIDE) // 2, (image.height - _SIDE) // 2
        image.crop((left, top, left + _SIDE, top + _SIDE)).save(out, "ppm")
    return out.getvalue()


def arrays(count: int = _COUNT, seed: int = 1) -> dict[str, np.ndarray]:
    """Return arrays of each kind; names end with the type of their numbers."""
    random = np.random.default_rng(seed)
    steps = random.normal(0, 1, (count, 3))
    return {
        "sorted keys, uint32": np.sort(random.integers(0, 1 << 32, count)).astype("<u4"),
        "times, int64": 1_700_000_000_000 + np.cumsum(random.integers(900, 1100, count)),
        "ramp with noise, int16": (np.arange(count) * 3 + random.integers(0, 9, count)).astype("<i2"),
        "walk, float64": 1000 + np.cumsum(steps[:, 0]),
        "prices, float64": np.round(100 + np.cumsum(steps[:, 0]) / 20, 2),
        "points, float32": (50 + np.cumsum(steps, 0) / 100).astype("<f4"),
        "waves, float64": 3 + np.sin(np.arange(count) / 50) + steps[:, 0] / 1000,
    }


def specialist(kind: str, name: str, path: Path) -> Row:
    """Return name and bytes of the compressor for a kind of file, empty without one. An array's name has its type."""
    if kind not in _SPECIALISTS:
        return {}
    label, program, coded = _SPECIALISTS[kind]
    if not shutil.which(program) and importlib.util.find_spec(program) is None:
        print(f"Note: {label} is not installed; skipped", file=sys.stderr)
        return {}
    return {"for the kind": label, "bytes for the kind": coded(name, path)}


def _command(words: Sequence[str], _: str, path: Path) -> int:
    return len(subprocess.run([*words, path], check=True, stdout=subprocess.PIPE).stdout)


def _lepton(_: str, path: Path) -> int:
    from lepton_jpeg_python import compress_bytes

    return len(compress_bytes(path.read_bytes()))


def _pcodec(name: str, path: Path) -> int:
    from pcodec import ChunkConfig, standalone

    numbers = np.fromfile(path, np.dtype(name.rpartition(" ")[2]))
    return len(standalone.simple_compress(numbers, ChunkConfig(compression_level=12)))


def _jpeg_xl(_: str, path: Path) -> int:
    import imagecodecs
    from PIL import Image

    with Image.open(path) as image:
        return len(imagecodecs.jpegxl_encode(np.asarray(image), lossless=True, effort=9))


_BCJ = ("xz", "--x86", "--lzma2=preset=9e", "-T1", "-c")
_SPECIALISTS: dict[str, tuple[str, str, Callable[[str, Path], int]]] = {
    "library": ("xz with BCJ", "xz", partial(_command, _BCJ)),
    _SOUND: ("FLAC -8", "flac", partial(_command, ("flac", "-8", "--no-padding", "--silent", "--stdout"))),
    _PHOTO: ("Lepton", "lepton_jpeg_python", _lepton),
    _IMAGE: ("JPEG XL, effort 9", "imagecodecs", _jpeg_xl),
    _ARRAY: ("pcodec 12", "pcodec", _pcodec),
}


def by_kind(found: Sequence[Row]) -> list[Row]:
    """Return the sums of each kind, of the columns that all of its files have."""
    totals = []
    for kind in dict.fromkeys(row["kind"] for row in found):
        same = [row for row in found if row["kind"] == kind]
        totals.append({"kind": kind, "for the kind": same[0].get("for the kind")} | sums(same))
    return totals


def _special(row: Row) -> str | None:
    return f"{row['bytes for the kind']:,} ({row['for the kind']})" if "bytes for the kind" in row else None


_BYTES = (
    Column("bytes", "raw", ","),
    *(Column(name, name, ",") for name in _TOOLS),
    Column("for this kind", _special),
    *(Column(name, name, ",") for name in _OURS),
    Column("-6, % of paq8px", lambda row: 100 * row[_OURS[1]] / row[_PAQ8PX] if _PAQ8PX in row else None, ".1f"),
)


def _of_kind(*kinds: str) -> Listing:
    return Listing(Column("file", "file"), *_BYTES, where=lambda row: row["kind"] in kinds)


MEASURE = Measure(
    rows,
    key=("kind", "file"),
    needs=("a corpus",),
    rivals=("xz", "zstd", "brotli", "zpaq", "paq8px", "flac", "pcodec", "imagecodecs", "lepton-jpeg-python"),
    time=20,
    options=(option("--only", default="", help="text in the kinds to measure"),),
    tables={
        "kinds": Listing(Column("kind", "kind"), *_BYTES, prepare=by_kind),
        "arrays": _of_kind(_ARRAY),
        "sounds": _of_kind(_SOUND),
        "photos": _of_kind(_PHOTO),
    },
)
