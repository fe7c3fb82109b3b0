"""The folder of what can be made again, and files in it: each appears at once, whole.

A cache that cannot be written or read is no error: who uses it goes on without it.
"""

import os
import secrets
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np

__all__ = ["make_room", "replace", "root"]


def root() -> Path:
    """SQUEEZE_CACHE, or `squeeze` in the user's folder of caches. RuntimeError for an account without a home."""
    if override := os.environ.get("SQUEEZE_CACHE"):
        return Path(override)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "squeeze"


def replace(path: Path, chunks: Iterable[np.ndarray]) -> None:
    """Put a file of these bytes in place at once; nobody ever sees a part of it. OSError where the folder or the disk
    does not allow it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            for chunk in chunks:
                file.write(chunk.data)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def make_room(folder: Path, size: int, most: int) -> bool:
    """Delete what was used longest ago until `size` more bytes make at most `most` in a folder; whether they fit then,
    and the disk has as much again. OSError where there is no such folder."""
    if size > most:
        return False
    found = sorted((file.stat().st_mtime_ns, file.stat().st_size, file) for file in folder.iterdir() if file.is_file())
    total = sum(bytes_ for _, bytes_, _ in found) + size
    for _, bytes_, file in found:
        if total > most:
            file.unlink(missing_ok=True)
            total -= bytes_
    return shutil.disk_usage(folder).free >= 2 * size
