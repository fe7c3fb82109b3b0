"""Binary files: exact reads and writes, positional access by many threads, and integers of variable length.

Files without a buffer, such as standard output of `python -u`, may write less than they are given. Pipes that do not
block may read or write nothing yet. The functions here wait and repeat until all is done.
"""

from __future__ import annotations

import io
import os
import select
from collections.abc import Iterator
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO

from squeeze.errors import DamagedError, TruncatedError

if TYPE_CHECKING:  # commands that need no arrays import this module
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

__all__ = [
    "CUT",
    "PIECE",
    "Positional",
    "SizedFile",
    "copy_pieces",
    "flush",
    "read_exactly",
    "read_some",
    "read_varint",
    "varint",
    "write_all",
]

CUT = "the file ends too early: it was cut off, and its end is missing"
PIECE = 1 << 20  # bytes that are read at a time


def read_some(source: BinaryIO, size: int) -> bytes:
    """Return the next 1 to `size` bytes, and no bytes only at the end. Wait for data that has not arrived yet."""
    while (piece := source.read(size)) is None:
        _wait(source, select.POLLIN)
    return piece


def read_exactly(file: BinaryIO, count: int) -> bytes:
    """Return the next `count` bytes. Raise TruncatedError if the file ends before.

    Check the count against a limit first: the bytes are collected in memory.
    """
    pieces = []
    while count:
        piece = read_some(file, min(count, PIECE))
        if not piece:
            raise TruncatedError(CUT)
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def copy_pieces(source: BinaryIO, count: int) -> Iterator[bytes]:
    """Yield the next `count` bytes in pieces of at most PIECE bytes. Raise TruncatedError if the file ends before."""
    while count:
        piece = read_exactly(source, min(count, PIECE))
        yield piece
        count -= len(piece)


def write_all(sink: BinaryIO, data: Any) -> int:
    """Write all bytes of a buffer and return their number. Raise OSError if the file cannot take them."""
    view, offset = memoryview(data), 0
    if view.nbytes:  # an empty array cannot be cast
        view = view.cast("B")
    while offset < view.nbytes:
        try:
            written = sink.write(view[offset:] if offset else data)
        except BlockingIOError as error:
            written = error.characters_written
            _wait(sink, select.POLLOUT)
        if written is None:
            if not isinstance(sink, io.RawIOBase):
                break  # an object with `write` that returns no count takes everything
            _wait(sink, select.POLLOUT)
        else:
            offset += written
    return view.nbytes


def flush(sink: BinaryIO) -> None:
    """Flush the buffer of a file, and wait if it does not block and is not ready."""
    while True:
        try:
            sink.flush()
        except BlockingIOError:
            _wait(sink, select.POLLOUT)
        else:
            return


def _wait(file: BinaryIO, event: int) -> None:
    """Wait until a non-blocking file is ready. Raise OSError if it has no file descriptor."""
    waiting = select.poll()
    waiting.register(file.fileno(), event)
    waiting.poll()


def varint(value: int) -> bytes:
    """Return a non-negative integer as unsigned LEB128."""
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(file: BinaryIO) -> tuple[int, bytes]:
    """Return an unsigned LEB128 integer below 2^63 and its encoded bytes. Raise DamagedError if it is longer."""
    value, encoded = 0, b""
    while len(encoded) < 9:
        byte = read_exactly(file, 1)
        value |= (byte[0] & 127) << (7 * len(encoded))
        encoded += byte
        if byte[0] < 128:
            return value, encoded
    raise DamagedError("a length in the file is impossible: the file is damaged")


class Positional:
    """An open file that several threads read and write at once, each at its own offset.

    A file without a descriptor is read by one thread at a time.
    """

    def __init__(self, file: BinaryIO):
        self._file, self._lock = file, Lock()
        try:
            self._handle = file.fileno()
        except (OSError, AttributeError):  # such as io.UnsupportedOperation
            self._handle = -1

    @property
    def is_local(self) -> bool:
        """True if the file has a descriptor, so that reading it again is cheap."""
        return self._handle >= 0

    def fill(self, place: int, out: Bytes) -> int:
        """Read into `out` (uint8) from offset `place` on.

        Returns:
            The number of bytes read, which is less than the size of `out` only at the end of the file.
        """
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
        """Write all of `data` (uint8) at offset `place`."""
        view, done = data.data, 0
        while done < data.size:
            done += os.pwrite(self._handle, view[done:], place + done)


class SizedFile(io.RawIOBase):
    """A base of seekable read-only files of a known size, which keeps the position. Subclasses read.

    Attributes:
        _size: Bytes of the file.
        _position: Offset of the next byte that is read.
    """

    def __init__(self, size: int):
        self._size, self._position = size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        position = offset + (0, self._position, self._size)[whence]
        if position < 0:
            raise ValueError("cannot seek to before the start")
        self._position = position
        return position
