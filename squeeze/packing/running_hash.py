"""Hashes of bytes that are read or written, computed on another thread than the coding."""

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import xxhash

from squeeze.checkpoint.safetensors import Bytes
from squeeze.packing.tensors.content import Content, pieces

__all__ = ["Checksums", "Hashing", "RunningHash", "checksum_of"]


_FEW = 1 << 14  # bytes that are hashed sooner than another thread is told of them


class Hashing(Protocol):
    """A receiver of the bytes of a file in order."""

    def skip(self, gap: bytes) -> None:
        """Receive bytes before a tensor that belong to none."""

    def update(self, data: Bytes) -> None:
        """Receive a tensor's bytes, or some of them."""

    def follow(self, content: Content) -> Future[int]:
        """Read a tensor and receive its bytes; return its checksum as a future."""


class RunningHash:
    """The SHA-256 of a file, computed on its own thread; at most one tensor waits."""

    def __init__(self) -> None:
        self._state = hashlib.sha256()
        self._pool = ThreadPoolExecutor(1)
        self._is_over = False
        self._running: Future[int] | Future[None] | None = None

    def __enter__(self) -> "RunningHash":
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over = True
        self._pool.shutdown(wait=True)

    def skip(self, gap: bytes) -> None:
        if gap:
            self._wait()
            self._state.update(gap)

    def update(self, data: Bytes) -> None:
        self._wait()
        if data.size < _FEW:
            self._running = None
            self._state.update(data.data)
        else:
            self._running = self._pool.submit(self._state.update, data.data)

    def follow(self, content: Content) -> Future[int]:
        self._wait()
        self._running = future = self._pool.submit(self._read, content)
        return future

    def _read(self, content: Content) -> int:
        checksum = xxhash.xxh3_64()
        for piece in pieces(content):
            if self._is_over:
                break
            self._state.update(piece.data)
            checksum.update(piece.data)
        return checksum.intdigest()

    def finish(self, rest: bytes) -> str:
        self._wait()
        self._state.update(rest)
        return self._state.hexdigest()

    def _wait(self) -> None:
        if self._running:
            self._running.result()


class Checksums:
    """The checksums of single tensors, computed on their own thread."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> "Checksums":
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(wait=True)

    def skip(self, gap: bytes) -> None:
        pass

    def update(self, data: Bytes) -> None:
        pass

    def follow(self, content: Content) -> Future[int]:
        return self._pool.submit(checksum_of, content, 1)


def checksum_of(content: Content, threads: int) -> int:
    """Return XXH3-64 of all bytes."""
    state = xxhash.xxh3_64()
    for piece in pieces(content, threads):
        state.update(piece.data)
    return state.intdigest()
