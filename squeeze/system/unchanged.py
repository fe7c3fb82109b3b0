"""Parts of a file that somebody may write to meanwhile: a mapped file that becomes shorter kills the process, so it is
read instead, and what has changed is an error."""

import os
from pathlib import Path

import numpy as np

__all__ = ["UnchangedFile"]


class UnchangedFile:
    """A file as it is now, of `size` bytes. Raises OSError where it cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = _stamp(path.stat())
        self.size = self._stamp[1]

    def read(self, begin: int, size: int) -> np.ndarray:
        """uint8 [size], from `begin` on. Raises ValueError where the file is another, or another size or time, than
        when it was opened."""
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
