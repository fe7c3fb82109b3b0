"""Measure the bytes that close deflate streams, by encoder. Every stream is closed and compared.

zlib is Python's. 7-Zip and the packages of other encoders are measured if they are installed.
"""

import argparse
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np

from bench.measure import Measure, Row
from bench.shared.texts import find_file
from bench.tables import Column, Listing, percent
from squeeze.codecs.parse.deflate.stream import Closings, open_stream
from squeeze.codecs.parse.room import Room

_FILES = ("lcet10.txt", "bash.elf")
_MOST = 1 << 26  # bytes of content
Encoder = Callable[[bytes, int], bytes]  # content, level -> stream


def rows(_: argparse.Namespace) -> Iterator[Row]:
    contents = [find_file(Path(name)).read_bytes() for name in _FILES]
    for name, (levels, encode) in encoders().items():
        found = [closing(encode(content, level)) for level in levels for content in contents]
        known = [(size, made) for size, made in found if made is not None]
        row: Row = {"streams": len(found), "closed": len(found) - len(known)}
        row |= {"bytes": sum(size for size, _ in known), "closing": sum(made for _, made in known)}
        yield {"encoder": name, "levels": len(levels)} | row | {"worst": max(made / size for size, made in known)}


def closing(stream: bytes) -> tuple[int, int | None]:
    """Return the bytes of a stream, and of what closes it; the latter is None if it stays closed."""
    opened = open_stream(np.frombuffer(stream, np.uint8), Room(_MOST))
    if opened is None:
        return len(stream), None
    made = Closings().encode(opened)
    assert Closings().close(opened.content, made).tobytes() == stream
    return len(stream), len(made)


def encoders() -> dict[str, tuple[tuple[int, ...], Encoder]]:
    """Return levels and function of the installed encoders, by name."""
    found: dict[str, tuple[tuple[int, ...], Encoder]] = {}
    if shutil.which("7z"):
        found["7-Zip"] = (1, 3, 5, 9), _seven_zip
    for name, (module, levels, encoder) in _PACKAGES.items():
        if importlib.util.find_spec(module.partition(".")[0]):
            found[name] = levels, encoder(importlib.import_module(module))
        else:
            print(f"Note: the Python package of {name} is not installed; skipped", file=sys.stderr)
    return found


def _seven_zip(data: bytes, level: int) -> bytes:
    with tempfile.TemporaryDirectory() as name:
        Path(name, "raw").write_bytes(data)
        command = ["7z", "a", "-tgzip", f"-mx={level}", "coded.gz", "raw"]
        subprocess.run(command, cwd=name, check=True, capture_output=True)
        coded = Path(name, "coded.gz").read_bytes()
    start = 10 if not coded[3] & 8 else coded.index(b"\0", 10) + 1
    return coded[start:-8]


def _like_zlib(package: ModuleType) -> Encoder:
    def encode(data: bytes, level: int) -> bytes:
        coder = package.compressobj(level, zlib.DEFLATED, -15)
        return bytes(coder.compress(data) + coder.flush())

    return encode


_PACKAGES: dict[str, tuple[str, tuple[int, ...], Callable[[ModuleType], Encoder]]] = {
    "zlib": ("zlib", tuple(range(1, 10)), _like_zlib),
    "libdeflate": ("deflate", (1, 2, 4, 6, 9, 10, 12), lambda package: package.deflate_compress),
    "zlib-ng": ("zlib_ng.zlib_ng", tuple(range(1, 10)), _like_zlib),
    "ISA-L": ("isal.isal_zlib", (1, 2, 3), _like_zlib),
    "zopfli": ("zopfli.zlib", (0,), lambda package: lambda data, _: package.compress(data)[2:-4]),
}
MEASURE = Measure(
    rows,
    key=("encoder",),
    needs=("a corpus",),
    rivals=("7z",),
    time=5,
    tables={
        "deflate": Listing(
            Column("encoder", "encoder"),
            Column("levels", "levels"),
            Column("streams", "streams", ","),
            Column("bytes", "bytes", ","),
            Column("closing bytes", "closing", ","),
            Column("share", lambda row: f"{100 * row['closing'] / row['bytes']:.2f} %"),
            Column("largest share of a stream", percent("worst")),
            Column("streams that stay closed", "closed"),
        ),
    },
)
