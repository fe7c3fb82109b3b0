"""A cache for tensors of objects at URLs, which coding and verification read several times but fetch only once."""

from contextlib import ExitStack
from tempfile import TemporaryFile
from threading import Lock
from typing import BinaryIO, Protocol

import numpy as np

from squeeze.checkpoint.safetensors import Bytes
from squeeze.packing.tensors.content import PART, Content, InFile, InMemory
from squeeze.packing.tensors.float_writer import FileWriter, copy
from squeeze.system.binary import Positional

__all__ = ["FetchCache", "rereadable", "spooled"]

_IN_MEMORY = 1 << 26  # bytes: a larger content goes to a temporary file


def rereadable(file: Positional, begin: int, size: int, opened: ExitStack) -> Content:
    """Return `size` bytes of a file from `begin` on, in a form that is cheap to read several times.

    Bytes of an object at a URL are cached until `opened` is closed.
    """
    content = InFile(file, begin, size)
    if file.is_local:
        return content
    kept = FetchCache(content)
    opened.callback(kept.close)
    return kept


def spooled(content: Content, opened: ExitStack) -> Content:
    """Copy a content that is slow to read to a nameless temporary file, which is closed with `opened`."""
    file = Positional(opened.enter_context(TemporaryFile()))  # noqa: SIM115
    copy(content, FileWriter(file, 0), 0)
    return InFile(file, 0, content.size)


class FetchCache:
    """A content that reads every byte of another one once, in order, and keeps it until it is closed.

    Up to 64 MiB stay in memory; a larger content goes to a nameless temporary file.
    """

    def __init__(self, content: Content):
        self.size = content.size
        self._content, self._lock, self._fetched, self._readers = content, Lock(), 0, 0
        self._is_closed = False
        self._copy: _Copy = _InMemory(self.size) if self.size <= _IN_MEMORY else _InFile.new(self.size)

    def fill(self, begin: int, out: Bytes) -> None:
        """Read bytes from `begin` on into `out`.

        Raises:
            DamagedError, OSError: as the other content raises them.
            ValueError: if the cache is closed.
        """
        with self._lock:
            if self._is_closed:
                raise ValueError("the cached tensor is closed")
            while self._fetched < begin + out.size:
                piece = np.empty(min(PART, self.size - self._fetched), np.uint8)
                self._content.fill(self._fetched, piece)
                self._copy.put(self._fetched, piece)
                self._fetched += piece.size
            self._readers += 1
        try:
            self._copy.fill(begin, out)
        finally:
            self._leave(reader=True)

    def close(self) -> None:
        """Release the memory or the file as soon as no thread reads it."""
        self._is_closed = True
        self._leave(reader=False)

    def _leave(self, reader: bool) -> None:
        with self._lock:
            self._readers -= reader
            if self._is_closed and not self._readers:
                self._copy.close()


class _Copy(Content, Protocol):
    def put(self, begin: int, piece: Bytes) -> None:
        """Write bytes from `begin` on."""

    def close(self) -> None:
        """Release the copy."""


class _InMemory(InMemory):
    def __init__(self, size: int):
        super().__init__(np.empty(size, np.uint8))

    def put(self, begin: int, piece: Bytes) -> None:
        self.data[begin : begin + piece.size] = piece

    def close(self) -> None:
        self.data = np.empty(0, np.uint8)


class _InFile(InFile):
    def __init__(self, file: BinaryIO, size: int):
        self._kept, self._place = file, Positional(file)
        super().__init__(self._place, 0, size)

    @classmethod
    def new(cls, size: int) -> "_InFile":
        return cls(TemporaryFile(), size)

    def put(self, begin: int, piece: Bytes) -> None:
        self._place.put(begin, piece)

    def close(self) -> None:
        self._kept.close()

    __del__ = close  # if coding stopped before this tensor
