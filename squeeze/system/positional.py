"""Files that many threads read and write at once, each at a place of its own."""

import os
from threading import Lock
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

__all__ = ["Positional"]

Bytes = npt.NDArray[np.uint8]


class Positional:
    """An open file. What is no file of the system's is read by one thread at a time."""

    def __init__(self, file: BinaryIO):
        self._file, self._lock = file, Lock()
        try:
            self._handle = file.fileno()
        except (OSError, AttributeError):  # such as io.UnsupportedOperation
            self._handle = -1

    @property
    def is_local(self) -> bool:
        """Whether it is a file of the system's: reading it again costs little."""
        return self._handle >= 0

    def fill(self, place: int, out: Bytes) -> int:
        """Read into `out` (uint8) from `place` on; how many bytes there were: fewer only at the end of the file."""
        view, filled = out.data, 0
        while filled < out.size:
            count = self._read(place + filled, view[filled:])
            if not count:
                break
            filled += count
        return filled

    def _read(self, place: int, view: memoryview) -> int:
        if self._handle >= 0:
            return os.preadv(self._handle, [view], place)
        with self._lock:
            self._file.seek(place)
            return self._file.readinto(view) or 0  # type: ignore[attr-defined, no-any-return]

    def put(self, place: int, data: Bytes) -> None:
        """Write all of `data` (uint8) from `place` on."""
        view, done = data.data, 0
        while done < data.size:
            done += os.pwrite(self._handle, view[done:], place + done)
