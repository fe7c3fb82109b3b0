"""A few bytes out of a large .sqz file on S3: requests, and bytes that come over the network.

The server is moto's on loopback, and counts. The file has blocks of noise, which are stored, and every sixteenth is of
Python's sources. Each reading is of a file that is opened anew: `index` is what opening takes, `range` what the bytes
do.
"""

import argparse
import os
import random
import shutil
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO

import squeeze
from bench.entry import Row
from bench.shared.s3_server import Application, fill, listening, reached_at, stores

_BLOCK = 1 << 24  # bytes of a file that a block holds
_TEXT_EVERY = 16  # blocks
_KEY = "large.sqz"


class Counting:
    """A WSGI application around another that notes the bytes of each answer about the file."""

    def __init__(self, application: Application) -> None:
        self._application, self.answers = application, list[int]()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        body = b"".join(self._application(environ, start))
        if environ["PATH_INFO"].endswith(_KEY):
            self.answers.append(len(body))
        return [body]

    def taken(self) -> tuple[int, int]:
        """Requests and bytes since this was last asked."""
        found = len(self.answers), sum(self.answers)
        self.answers.clear()
        return found


def rows(options: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        source, stored = Path(name, "source"), Path(name, "stored")
        stored.mkdir()
        write(source, round(options.gigabytes * 1e9))
        with source.open("rb") as file, (stored / _KEY).open("wb") as target:
            squeeze.compress_stream(file, target, level=options.level)
        size, counting = (stored / _KEY).stat().st_size, Counting(stores())
        fill(stored)
        shutil.rmtree(stored)
        with listening(counting) as address, source.open("rb") as original:
            os.environ.update(reached_at(address))
            yield {"level": options.level, "file": size, **_read(counting, original, source.stat().st_size, options)}


def _read(counting: Counting, original: BinaryIO, size: int, options: argparse.Namespace) -> Row:
    """The most of all readings."""
    places = random.Random(0)
    opened, ranged, seconds = [], [], []
    for _ in range(options.readings):
        begin = places.randrange(size - options.bytes)
        original.seek(begin)
        started = time.perf_counter()
        with squeeze.open(f"s3://bucket/{_KEY}") as file:
            opened.append(counting.taken())
            file.seek(begin)
            if file.read(options.bytes) != original.read(options.bytes):
                raise SystemExit("Error: other bytes were read")
            ranged.append(counting.taken())
        seconds.append(time.perf_counter() - started)
    row: Row = {"bytes": options.bytes, "readings": options.readings, "seconds": round(median(seconds), 2)}
    for name, taken in (("index", opened), ("range", ranged)):
        row |= {f"{name}, requests": max(one[0] for one in taken), f"{name}, bytes": max(one[1] for one in taken)}
    return row


def write(path: Path, size: int) -> None:
    """A file of noise, in which every sixteenth block is text."""
    noise, text, left = random.Random(0), _text(), size
    with path.open("wb") as file:
        while left:
            block = text if file.tell() // _BLOCK % _TEXT_EVERY == 0 else noise.randbytes(_BLOCK)
            left -= file.write(block[:left])


def _text() -> bytes:
    """A block of sources of Python's library, again and again if they are fewer."""
    found = b"".join(path.read_bytes() for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")))
    return (found * (_BLOCK // len(found) + 1))[:_BLOCK]
