"""Large files reach the disk while they are made."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import BinaryIO

__all__ = ["synced"]

_EVERY = 1.0  # seconds
_sync = getattr(os, "fdatasync", os.fsync)  # macOS has only the latter


@contextmanager
def synced(file: BinaryIO) -> Iterator[None]:
    """Sync `file` when the block ends well. What is written is synced meanwhile, too, so that the end has little to
    wait for. Raises OSError where the disk fails."""
    handle, over, failed = file.fileno(), Event(), list[OSError]()

    def keep_up() -> None:
        while not over.wait(_EVERY):
            try:
                _sync(handle)
            except OSError as error:  # of which a later sync would say nothing
                failed.append(error)
                return

    thread = Thread(target=keep_up, name="squeeze-sync", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if failed:
        raise failed[0]
    file.flush()
    os.fsync(handle)
