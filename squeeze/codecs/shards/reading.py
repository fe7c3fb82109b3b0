"""The files of shards, read ahead: small ones together, so that an object store is asked for many at a time."""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from squeeze.errors import StorageError, VerifyError
from squeeze.system import files
from squeeze.system.in_order import ordered_map
from squeeze.system.remote_path import read_together
from squeeze.system.remote_status import has_version
from squeeze.system.storage import remote

__all__ = ["Failed", "Found", "Source", "Unreadable", "found"]

_LARGE = 1 << 20  # bytes from which a file is read when it is its turn
_BATCH, _BATCH_FILES = 1 << 20, 512  # few, so that what is wanted first is soon there
_AT_ONCE = 8  # batches that are read
_AHEAD = 24  # batches that are read or wait, so that there is more than a block when the one before it is coded
_PIECE = 1 << 20
_CHANGED = "it changed while it was read: run again when nothing writes to it"


@dataclass(frozen=True)
class Source:
    """A file of a corpus. name: within a shard; size: in bytes, when it was listed; stamp: what has changed when the
    file has, empty where that was not looked at."""

    path: Path
    name: str
    size: int
    stamp: str = ""


Failed = Callable[[Source, Exception], None]


class Unreadable(Exception):
    """For a large file that turns out to be unreadable, or another than it was, after a part of it was given."""

    def __init__(self, source: Source, reason: Exception):
        super().__init__(source, reason)
        self.source, self.reason = source, reason


@dataclass(frozen=True)
class Found:
    """A source as it was read."""

    source: Source
    size: int
    pieces: Iterable[bytes]


def found(sources: Iterable[Source], failed: Failed) -> Iterator[Found]:
    """All sources that can be read and are as they were listed, in order; `failed` is told of the others. Memory holds
    some megabytes of them. The pieces of a large one raise Unreadable."""
    for batch in ordered_map(_read, _batches(sources), _AT_ONCE, ahead=_AHEAD):
        for source, data in batch:
            if isinstance(data, Exception):
                failed(source, data)
            elif data is not None:
                yield Found(source, len(data), [data])
            else:
                yield from _opened(source, failed)


def _batches(sources: Iterable[Source]) -> Iterator[list[Source]]:
    batch: list[Source] = []
    size = 0
    for source in sources:
        own = source.size if source.size < _LARGE else 0
        if batch and (size + own > _BATCH or len(batch) == _BATCH_FILES):
            yield batch
            batch, size = [], 0
        batch.append(source)
        size += own
    if batch:
        yield batch


def _read(batch: list[Source]) -> list[tuple[Source, bytes | Exception | None]]:
    """What small files hold, and None for large ones."""
    small = [source for source in batch if source.size < _LARGE]
    together = iter(read_together([place for source in small if (place := remote(source.path))]))
    known = {source.path: _small(source, next(together) if remote(source.path) else None) for source in small}
    return [(source, known.get(source.path)) for source in batch]


def _small(source: Source, known: bytes | Exception | None) -> bytes | Exception:
    """What a file holds. known: that already, or why its storage did not give it, which may pass."""
    if known is not None and not isinstance(known, StorageError):
        return known
    try:
        with source.path.open("rb") as file:
            opened = _checked(source, file)
            data = file.read()
            _check_again(source, opened)
            return data
    except (OSError, VerifyError) as error:
        return error


def _opened(source: Source, failed: Failed) -> Iterator[Found]:
    try:
        file = source.path.open("rb")
    except OSError as error:
        failed(source, error)
        return
    with file:
        try:
            opened = _checked(source, file)
        except VerifyError as error:
            failed(source, error)
            return
        yield Found(source, opened.st_size, _pieces(source, file, opened))


def _pieces(source: Source, file: BinaryIO, opened: os.stat_result) -> Iterator[bytes]:
    size = opened.st_size
    try:
        while size and (piece := file.read(min(size, _PIECE))):
            size -= len(piece)
            yield piece
        if size or file.read(1):
            raise VerifyError(_CHANGED)
        _check_again(source, opened)
    except (OSError, VerifyError) as error:
        raise Unreadable(source, error) from error


def _checked(source: Source, file: BinaryIO) -> os.stat_result:
    """The status of a file that was opened. Raises VerifyError where it is not as it was listed."""
    opened = files.status(file)
    same = source.stamp in ("", files.stamp_of(opened))
    if not same and (has_version(opened) or opened.st_size != source.size):
        raise VerifyError(_CHANGED)
    return opened


def _check_again(source: Source, opened: os.stat_result) -> None:
    """Raises VerifyError where a file was written to since it was opened; objects are not."""
    if not remote(source.path) and files.has_changed(source.path, opened):
        raise VerifyError(_CHANGED)
