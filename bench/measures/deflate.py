"""Measure the bytes that close deflate streams, by encoder, and in documents. Every stream is closed and compared.

zlib is Python's. 7-Zip and the packages of other encoders are measured if they are installed.
"""

import argparse
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np

from bench.measure import Measure, Row, option
from bench.shared.texts import find_file
from bench.tables import Column, Listing, Pivot
from squeeze.codecs.parse import tree
from squeeze.codecs.parse.deflate.stream import Closings, open_stream
from squeeze.codecs.parse.finding import parse
from squeeze.codecs.parse.room import Room

_FILES = ("lcet10.txt", "bash.elf")
_DOCUMENTS = (".docx", ".xlsx", ".pptx", ".odt", ".ods", ".epub", ".whl", ".pdf", ".tgz", ".png")
_OWN = "its own"
_MOST = 1 << 26  # bytes of content
Encoder = Callable[[bytes], bytes]


def rows(options: argparse.Namespace) -> Iterator[Row]:
    for name, encode in encoders().items():
        for path in map(find_file, options.files):
            content = path.read_bytes()
            yield {"file": path.name, "encoder": name, **closing(encode(content))}
    folder = Path(os.environ.get("SQUEEZE_CORPUS", ""), "real")
    documents = sorted(path for path in folder.glob("*") if path.suffix in _DOCUMENTS) if options.documents else []
    for path in documents:
        yield {"file": path.name, "encoder": _OWN, **all_closings(path.read_bytes())}


def closing(stream: bytes) -> Row:
    """Return the bytes of a stream, and of what closes it; the latter is None if it stays closed."""
    opened = open_stream(np.frombuffer(stream, np.uint8), Room(_MOST))
    if opened is None:
        return {"streams": 1, "bytes": len(stream), "closing": None}
    made = Closings().encode(opened)
    assert Closings().close(opened.content, made).tobytes() == stream
    return {"streams": 1, "bytes": len(stream), "closing": len(made)}


def all_closings(data: bytes) -> Row:
    """Return the number and bytes of the streams in a file, and the bytes of what closes them."""
    root = parse(np.frombuffer(data, np.uint8), lambda data, found: found.opened is not None)
    opened = np.concatenate([node.own for node in root.nodes()])
    assert tree.close(tree.read(tree.to_bytes(root), opened), len(data)).tobytes() == data
    read = tree.read_shape(tree.to_bytes(root))
    sizes = [child.found.size for node in root.nodes() for child in node.children if child.found and child.found.opened]
    made = sum(len(child.closing) for node in read.nodes() for child in node.children)
    return {"streams": len(sizes), "bytes": sum(sizes), "closing": made if sizes else None}


def encoders() -> dict[str, Encoder]:
    """Return the installed encoders by name."""
    found = {f"zlib, level {level}": _zlib(level) for level in range(1, 10)}
    if program := shutil.which("7z"):
        found |= {f"7-Zip, level {level}": _seven_zip(program, level) for level in (1, 3, 5, 9)}
    else:
        print("Note: 7z is not installed; skipped", file=sys.stderr)
    for name, (module, levels, encode) in _PACKAGES.items():
        try:
            package = importlib.import_module(module)
        except ImportError:
            print(f"Note: the Python package of {name} is not installed; skipped", file=sys.stderr)
            continue
        found |= {f"{name}, level {level}" if len(levels) > 1 else name: encode(package, level) for level in levels}
    return found


def _zlib(level: int) -> Encoder:
    return lambda data: zlib.compress(data, level, -15)


def _seven_zip(program: str, level: int) -> Encoder:
    def encode(data: bytes) -> bytes:
        with tempfile.TemporaryDirectory() as name:
            Path(name, "raw").write_bytes(data)
            command = [program, "a", "-tgzip", f"-mx={level}", "coded.gz", "raw"]
            subprocess.run(command, cwd=name, check=True, capture_output=True)
            coded = Path(name, "coded.gz").read_bytes()
        start = 10 if not coded[3] & 8 else coded.index(b"\0", 10) + 1
        return coded[start:-8]

    return encode


def _libdeflate(package: ModuleType, level: int) -> Encoder:
    return lambda data: bytes(package.deflate_compress(data, level))


def _like_zlib(package: ModuleType, level: int) -> Encoder:
    def encode(data: bytes) -> bytes:
        coder = package.compressobj(level, zlib.DEFLATED, -15)
        return bytes(coder.compress(data) + coder.flush())

    return encode


def _zopfli(package: ModuleType, _level: int) -> Encoder:
    return lambda data: bytes(package.compress(data)[2:-4])


_PACKAGES: dict[str, tuple[str, tuple[int, ...], Callable[[ModuleType, int], Encoder]]] = {
    "libdeflate": ("deflate", (1, 2, 4, 6, 9, 10, 12), _libdeflate),
    "zlib-ng": ("zlib_ng.zlib_ng", tuple(range(1, 10)), _like_zlib),
    "ISA-L": ("isal.isal_zlib", (1, 2, 3), _like_zlib),
    "zopfli": ("zopfli.zlib", (0,), _zopfli),
}


def _share(row: Row) -> str:
    return "stays closed" if row["closing"] is None else f"{100 * row['closing'] / row['bytes']:.2f} %"


def _closing(row: Row) -> str:
    return "stays closed" if row["closing"] is None else f"{row['closing']:,} ({_share(row)})"


MEASURE = Measure(
    rows,
    key=("file", "encoder"),
    needs=("a corpus",),
    rivals=("7z",),
    time=5,
    options=(
        option("files", nargs="*", type=Path, default=list(map(Path, _FILES)), help=f"files, default: {_FILES}"),
        option("--documents", action=argparse.BooleanOptionalAction, default=True, help="documents of the corpus"),
    ),
    quick="--no-documents",
    tables={
        "deflate": Pivot((Column("encoder", "encoder"),), "file", {name: name for name in _FILES}, _closing),
        "deflate-documents": Listing(
            (
                Column("file", "file"),
                Column("streams", "streams", ","),
                Column("bytes", "bytes", ","),
                Column("closing bytes", "closing", ","),
                Column("share", _share),
            ),
            where=lambda row: row["encoder"] == _OWN,
        ),
    },
)
