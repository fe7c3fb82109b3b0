"""Checks that a file, the files of a folder or tokens are still those that were read before.

A mapped file that becomes shorter kills the process that reads it. So such files are read here instead, and a change is
an error.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # commands that start without them import this module
    import numpy as np
    import torch

__all__ = ["UnchangedFile", "digest", "has_changed", "stamp_of", "stamps"]


class UnchangedFile:
    """A file of `size` bytes that must not change after this object was created.

    Raises OSError if the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = _stamp(path.stat())
        self.size = self._stamp[1]

    def read(self, begin: int, size: int) -> np.ndarray:
        """Return uint8 [size], the bytes from `begin` on.

        Raises ValueError if the path now names another file, or the file's size or modification time has changed.
        """
        import numpy as np

        data = np.empty(size, np.uint8)
        view, filled = data.data, 0
        with self._path.open("rb", buffering=0) as file:
            file.seek(begin)
            while filled < size and (count := file.readinto(view[filled:])):
                filled += count
            if filled < size or _stamp(os.fstat(file.fileno())) != self._stamp:
                raise ValueError("the file was changed while it was read")
        return data


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def stamp_of(status: os.stat_result) -> str:
    """Return a text that differs if a file was changed: its size, modification time and inode."""
    return f"{status.st_size}-{status.st_mtime_ns}-{status.st_ino}"


def has_changed(path: Path, opened: os.stat_result) -> bool:
    """Return whether `path` names another file, or the file was written to, since it was opened with this status.

    Call it while the file is still open. Pipes and devices never change.
    """
    if not stat.S_ISREG(opened.st_mode):
        return False
    try:
        return _identity(path.stat()) != _identity(opened)
    except FileNotFoundError:
        return True


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def stamps(folder: Path) -> list[list[Any]]:
    """Return path, size and modification time of each file in a folder, so that two runs can be compared."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path in files]


def digest(tokens: torch.Tensor | Iterable[Mapping[str, torch.Tensor]] | None) -> str | None:
    """Return the SHA-256 of tokens, or of samples with tensors by name, as hexadecimal digits, or None for None."""
    if tokens is None:
        return None
    samples: Any = [{"": tokens}] if hasattr(tokens, "numpy") else tokens
    total = hashlib.sha256()
    for sample in samples:
        for name, value in sample.items():
            total.update(name.encode() + value.contiguous().numpy().tobytes())
    return total.hexdigest()
