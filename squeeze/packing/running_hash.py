"""The hash of what is read or written, counted beside the coding."""

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor

from squeeze.checkpoint.safetensors import Bytes

__all__ = ["RunningHash"]


class RunningHash:
    """SHA-256 of what passes, counted on a thread beside the coding; at most one tensor waits."""

    def __init__(self) -> None:
        self._state = hashlib.sha256()
        self._pool = ThreadPoolExecutor(1)
        self._running: Future[None] | None = None

    def __enter__(self) -> "RunningHash":
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(wait=True)

    def update(self, gap: bytes, data: Bytes) -> None:
        """A tensor's bytes, after those before it that belong to none."""
        self._wait()
        if gap:
            self._state.update(gap)
        self._running = self._pool.submit(self._state.update, data.data)

    def finish(self, rest: bytes) -> str:
        self._wait()
        self._state.update(rest)
        return self._state.hexdigest()

    def _wait(self) -> None:
        if self._running:
            self._running.result()
