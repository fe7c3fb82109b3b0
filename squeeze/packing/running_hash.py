"""The hash of what is read or written, counted beside the coding."""

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import xxhash

from squeeze.checkpoint.safetensors import Bytes
from squeeze.packing.tensors.content import Content, pieces

__all__ = ["Checksums", "Hashing", "RunningHash", "checksum_of"]


class Hashing(Protocol):
    """What is told of the bytes of a file in order."""

    def skip(self, gap: bytes) -> None:
        """Bytes before a tensor that belong to none."""

    def update(self, data: Bytes) -> None:
        """A tensor's bytes, or some of them."""

    def follow(self, content: Content) -> Future[int]:
        """The same of a tensor that is read for it; its checksum is to come."""


class RunningHash:
    """SHA-256 of what passes, counted on a thread beside the coding; at most one tensor waits."""

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
    """The checksums alone of tensors that are read, each counted on a thread beside the coding."""

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
    """XXH3-64 of all bytes."""
    state = xxhash.xxh3_64()
    for piece in pieces(content, threads):
        state.update(piece.data)
    return state.intdigest()
