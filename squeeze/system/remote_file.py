"""Reading an object in ranges: few requests where it is read from end to end, and few bytes where it is not."""

import os
from collections.abc import Callable
from typing import Any, BinaryIO

from squeeze.system.binary import SizedFile
from squeeze.system.remote_errors import broken, persistently

__all__ = ["RemoteFile", "will_read"]

_LEAST = 1 << 16  # bytes of a request
_AHEAD = 1 << 23  # the most bytes that are read ahead
_MOST = 1 << 26  # bytes of a request that nobody announced


class RemoteFile(SizedFile):
    """An object as a seekable binary file that can only be read. Its reads come short at its end alone.

    fetch(begin, end) makes a request. A read after a seek asks for what it wants, and at least 64 KiB; while reads
    follow each other, what is read ahead doubles up to 8 MiB. A request that breaks is made again, some times. Raises
    OSError, and StorageError where less comes than was there. key, etag: of the object, as its filesystem names it.
    """

    def __init__(
        self,
        url: str,
        status: os.stat_result,
        fetch: Callable[[int, int], bytes],
        close: Callable[[], object],
        key: str = "",
        etag: str = "",
    ):
        super().__init__(status.st_size)
        self.key, self.etag = key, etag
        self.url, self.status, self._fetch, self._close = url, status, fetch, close
        self._begin = self._ahead = self._announced = 0
        self._data = memoryview(b"")  # from `_begin` on

    def announce(self, size: int) -> None:
        """So many bytes will be read from here on: they come in one request."""
        self._announced = min(self._position + size, self._size)

    def read(self, size: int | None = -1, /) -> bytes:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        left = max(self._size - self._position, 0)
        data = bytearray(left if size is None or size < 0 else min(size, left))
        view, filled = memoryview(data), 0
        while filled < len(data):
            filled += self.readinto(view[filled:])
        return bytes(data)

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        if not view.nbytes or self._position >= self._size:
            return 0
        if not self._begin <= self._position < self._begin + len(self._data):
            self._fill(view.nbytes)
        start = self._position - self._begin
        count = min(len(self._data) - start, view.nbytes)
        view[:count] = self._data[start : start + count]
        self._position += count
        return count

    def _fill(self, wanted: int) -> None:
        """Fetch what the position is in. What is near the end comes with all before it that a request is worth."""
        follows = bool(self._data) and self._position == self._begin + len(self._data)
        self._ahead = min(2 * self._ahead, _AHEAD) if follows else _LEAST
        if self._position < self._announced:
            begin, end = self._position, self._announced
        else:
            begin = min(self._position, max(self._size - _LEAST, self._begin + len(self._data) if follows else 0))
            end = min(self._position + max(min(wanted, _MOST), self._ahead), self._size)
        self._begin, self._data = begin, memoryview(persistently(self.url, lambda: self._asked(begin, end)))

    def _asked(self, begin: int, end: int) -> bytes:
        data = self._fetch(begin, end)
        if len(data) != end - begin:
            raise broken(self.url, f"{len(data):,} of {end - begin:,} bytes came")
        return data

    def close(self) -> None:
        if not self.closed:
            self._data = memoryview(b"")
            self._close()
        super().close()


def will_read(file: BinaryIO, size: int) -> None:
    """Announce that `size` bytes will be read from where a file is; only one of a URL heeds it."""
    if isinstance(file, RemoteFile):
        file.announce(size)
