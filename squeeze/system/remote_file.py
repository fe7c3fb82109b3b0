"""Reading an object in ranges, with few requests for sequential reads and few bytes for random access."""

import os
from collections.abc import Callable
from typing import Any, BinaryIO

from squeeze.system.binary import SizedFile
from squeeze.system.remote_errors import connection_error, retry

__all__ = ["RemoteFile", "will_read"]

_LEAST = 1 << 16  # the least bytes of a request
_AHEAD = 1 << 23  # the most bytes that are read ahead
_MOST = 1 << 26  # the most bytes of a request that was not announced


class RemoteFile(SizedFile):
    """An object as a seekable read-only binary file. Only a read at the end returns fewer bytes than asked for.

    A read after a seek fetches what it needs, at least 64 KiB. Sequential reads double the read-ahead up to 8 MiB. A
    request that breaks is repeated a few times.

    Args:
        url: The URL, for messages.
        status: The status with the size.
        fetch: fetch(begin, end) requests a range of bytes.
        close: Called when the file is closed.
        key: The key of the object, as its filesystem names it.
        etag: The ETag of the object.

    Raises:
        OSError: The store refused a request.
        StorageError: The connection broke, or fewer bytes came than requested.
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
        """Announce that the next `size` bytes will be read, so that one request fetches them."""
        self._announced = min(self._position + size, self._size)

    def read(self, size: int | None = -1, /) -> bytes:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        remaining = max(self._size - self._position, 0)
        data = bytearray(remaining if size is None or size < 0 else min(size, remaining))
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
        """Fetch a range around the position. Near the end, the range begins earlier to make the request worthwhile."""
        follows = bool(self._data) and self._position == self._begin + len(self._data)
        self._ahead = min(2 * self._ahead, _AHEAD) if follows else _LEAST
        if self._position < self._announced:
            begin, end = self._position, self._announced
        else:
            begin = min(self._position, max(self._size - _LEAST, self._begin + len(self._data) if follows else 0))
            end = min(self._position + max(min(wanted, _MOST), self._ahead), self._size)
        self._begin, self._data = begin, memoryview(retry(self.url, lambda: self._asked(begin, end)))

    def _asked(self, begin: int, end: int) -> bytes:
        data = self._fetch(begin, end)
        if len(data) != end - begin:
            raise connection_error(self.url, f"{len(data):,} of {end - begin:,} bytes came")
        return data

    def close(self) -> None:
        if not self.closed:
            self._data = memoryview(b"")
            self._close()
        super().close()


def will_read(file: BinaryIO, size: int) -> None:
    """Announce that the next `size` bytes of a file will be read. Files on the disk ignore it."""
    if isinstance(file, RemoteFile):
        file.announce(size)
