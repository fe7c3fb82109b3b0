"""A tensor of an object at a URL, which coding and proving read several times: it is fetched once."""

from contextlib import ExitStack
from tempfile import TemporaryFile
from threading import Lock
from typing import BinaryIO, Protocol

import numpy as np

from squeeze.checkpoint.safetensors import Bytes
from squeeze.packing.tensors.content import PART, Content, InFile, InMemory
from squeeze.packing.tensors.float_writer import FileWriter, copy
from squeeze.system.binary import Positional

__all__ = ["AtHand", "spooled", "to_reread"]

_IN_MEMORY = 1 << 26  # bytes: what is larger waits in a temporary file


def to_reread(file: Positional, begin: int, size: int, opened: ExitStack) -> Content:
    """`size` bytes of a file from `begin` on, to be read often: those of an object at a URL are at hand until `opened`
    is closed."""
    content = InFile(file, begin, size)
    if file.is_local:
        return content
    kept = AtHand(content)
    opened.callback(kept.close)
    return kept


def spooled(content: Content, opened: ExitStack) -> Content:
    """Return the bytes of a content that takes long to read, in a file without a name that is closed with `opened`."""
    file = Positional(opened.enter_context(TemporaryFile()))  # noqa: SIM115
    copy(content, FileWriter(file, 0), 0)
    return InFile(file, 0, content.size)


class AtHand:
    """The bytes of another content, of which each is asked for once, and in order. What has come stays in memory, or,
    of a content above 64 MiB, in a file without a name in the folder for temporary files, until it is closed."""

    def __init__(self, content: Content):
        self.size = content.size
        self._content, self._lock, self._fetched, self._readers = content, Lock(), 0, 0
        self._is_closed = False
        self._copy: _Copy = _InMemory(self.size) if self.size <= _IN_MEMORY else _InFile.new(self.size)

    def fill(self, begin: int, out: Bytes) -> None:
        """Raises DamagedError and OSError as the other content does, and ValueError once it is closed."""
        with self._lock:
            if self._is_closed:
                raise ValueError("what was at hand is gone")
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
        """Memory and file go when nobody is reading them any more."""
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
        """They are not needed any more."""


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

    __del__ = close  # of a tensor that was not come to
