"""Sparse files: holes are neither read nor written.

A hole is a stretch of a file without blocks on the disk, which reads as zeros. Where the system tells of none, or a
sink is no file that can have some, bytes are read and written as ever.
"""

import errno
import fcntl
import io
import os
import stat
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

import numpy as np

from squeeze.system.binary import read_some, write_all

__all__ = ["SparseSink", "reading"]

_BLOCK = 1 << 12  # bytes of a file system's block: shorter holes save nothing
_PIECE = 1 << 20


def reading(source: BinaryIO) -> BinaryIO:
    """Return what reads a source from where it is, without its holes where it is a sparse file."""
    try:
        status = os.fstat(source.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_blocks * 512 >= status.st_size:
            return source
        return cast(BinaryIO, _HoledSource(source, source.fileno()))
    except (OSError, ValueError, AttributeError):  # nothing of the system's
        return source


class _HoledSource:
    """A sparse file that is read in order."""

    def __init__(self, source: BinaryIO, handle: int):
        self._source, self._handle = source, handle

    def read(self, size: int) -> bytes:
        place = self._source.tell()
        data = self._next(place, os.SEEK_DATA)
        if data > place:
            count = min(size, data - place)
            self._source.seek(place + count)
            return bytes(count)
        return read_some(self._source, min(size, max(self._next(place, os.SEEK_HOLE) - place, 1)))

    def _next(self, place: int, whence: int) -> int:
        """Return where the next data or hole begins; the file's end if there is none. The handle stays where it is."""
        before = os.lseek(self._handle, 0, os.SEEK_CUR)
        try:
            return os.lseek(self._handle, place, whence)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return os.fstat(self._handle).st_size
        finally:
            os.lseek(self._handle, before, os.SEEK_SET)


class SparseSink:
    """Writes to a sink, and makes holes of blocks of zeros where it is a regular file that ends where it is."""

    def __init__(self, sink: BinaryIO):
        self._sink, self._sparse = sink, _takes_holes(sink)
        self._ends_in_hole = False

    def write(self, data: Any) -> None:
        """Write bytes, or anything else that has a buffer of them."""
        if not self._sparse:
            write_all(self._sink, data)
            return
        view = np.frombuffer(data, np.uint8)
        for begin, end, empty in _stretches(view, -self._sink.tell() % _BLOCK):
            if empty:
                self.skip(end - begin)
            else:
                write_all(self._sink, view[begin:end].data)
                self._ends_in_hole = False

    def skip(self, length: int) -> None:
        """Write so many zeros."""
        if self._sparse:
            self._sink.seek(length, io.SEEK_CUR)
            self._ends_in_hole = length > 0 or self._ends_in_hole
        else:
            for begin in range(0, length, _PIECE):
                write_all(self._sink, bytes(min(_PIECE, length - begin)))

    def finish(self) -> None:
        """Make a last hole part of the file."""
        if self._ends_in_hole:
            self._sink.truncate()


def _stretches(view: np.ndarray, begin: int) -> Iterator[tuple[int, int, bool]]:
    """Yield (start, end, whether it is empty) of stretches of blocks, which begin at `begin`, and of what is around."""
    count = max(view.size - begin, 0) // _BLOCK
    words = view[begin : begin + count * _BLOCK].view(np.uint64).reshape(count, _BLOCK // 8)
    empty = np.zeros(count + 2, bool)
    empty[1:-1] = ~words.any(axis=1)
    turns = (begin + _BLOCK * np.flatnonzero(empty[1:] != empty[:-1])).tolist()
    for place, (start, end) in enumerate(zip([0, *turns], [*turns, view.size], strict=True)):
        if start < end:
            yield start, end, place % 2 == 1


def _takes_holes(sink: BinaryIO) -> bool:
    """Whether it is a file that ends where the next byte goes, so that what is left out reads as zeros."""
    try:
        sink.flush()
        state, flags = os.fstat(sink.fileno()), fcntl.fcntl(sink.fileno(), fcntl.F_GETFL)
        return stat.S_ISREG(state.st_mode) and state.st_size <= sink.tell() and not flags & os.O_APPEND
    except (OSError, ValueError, AttributeError):  # a pipe, or nothing of the system's
        return False
