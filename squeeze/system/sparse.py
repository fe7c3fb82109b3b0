"""Sparse files: holes are neither read nor written.

A hole is a range of a file without blocks on the disk, which reads as zeros. If the system reports no holes, or the
sink cannot have any, all bytes are read and written.
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
    """Return a file that reads from the current position of a source and skips holes if it is a sparse file."""
    try:
        status = os.fstat(source.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_blocks * 512 >= status.st_size:
            return source
        return cast(BinaryIO, _HoledSource(source, source.fileno()))
    except (OSError, ValueError, AttributeError):  # no file of the operating system
        return source


class _HoledSource:
    """A sparse file that is read sequentially."""

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
        """Return where the next data or hole begins, or the file's end.

        The position of the descriptor does not change.
        """
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
    """A sink that turns blocks of zeros into holes if it is a regular file that ends at the current position."""

    def __init__(self, sink: BinaryIO):
        self._sink, self._sparse = sink, _takes_holes(sink)
        self._ends_in_hole = False

    def write(self, data: Any) -> None:
        """Write a buffer of bytes."""
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
        """Write `length` zeros."""
        if self._sparse:
            self._sink.seek(length, io.SEEK_CUR)
            self._ends_in_hole = length > 0 or self._ends_in_hole
        else:
            for begin in range(0, length, _PIECE):
                write_all(self._sink, bytes(min(_PIECE, length - begin)))

    def finish(self) -> None:
        """Extend the file over a hole at its end."""
        if self._ends_in_hole:
            self._sink.truncate()


def _stretches(view: np.ndarray, begin: int) -> Iterator[tuple[int, int, bool]]:
    """Yield (start, end, is_hole) of the runs of blocks from `begin` on, and of what is before and after them."""
    count = max(view.size - begin, 0) // _BLOCK
    words = view[begin : begin + count * _BLOCK].view(np.uint64).reshape(count, _BLOCK // 8)
    empty = np.zeros(count + 2, bool)
    empty[1:-1] = ~words.any(axis=1)
    turns = (begin + _BLOCK * np.flatnonzero(empty[1:] != empty[:-1])).tolist()
    for place, (start, end) in enumerate(zip([0, *turns], [*turns, view.size], strict=True)):
        if start < end:
            yield start, end, place % 2 == 1


def _takes_holes(sink: BinaryIO) -> bool:
    """Return whether a sink is a regular file that ends where the next byte goes, so that skipped bytes read as
    zeros.
    """
    try:
        sink.flush()
        state, flags = os.fstat(sink.fileno()), fcntl.fcntl(sink.fileno(), fcntl.F_GETFL)
        return stat.S_ISREG(state.st_mode) and state.st_size <= sink.tell() and not flags & os.O_APPEND
    except (OSError, ValueError, AttributeError):  # a pipe, or nothing of the system's
        return False
