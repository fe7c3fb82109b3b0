"""Reading the files of shards ahead: small files in batches, so that an object store gets many requests at a time."""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from squeeze.errors import StorageError, VerifyError
from squeeze.system import files, unchanged
from squeeze.system.parallel import ordered_map
from squeeze.system.remote_info import has_version
from squeeze.system.remote_path import read_together
from squeeze.system.storage import remote

__all__ = ["OnFailure", "ReadSource", "Source", "Unreadable", "read_sources"]

_LARGE = 1 << 20  # bytes from which a file is not read ahead
_BATCH, _BATCH_FILES = 1 << 20, 512  # small, so that the first files come soon
_AT_ONCE = 8  # batches that are read in parallel
_AHEAD = 24  # batches read ahead: more than a block
_PIECE = 1 << 20
_CHANGED = "it changed while it was read: run again when nothing writes to it"


@dataclass(frozen=True)
class Source:
    """A file of a corpus.

    `name` is its name in a shard, `size` its bytes when it was listed. `stamp` changes if the file does; it is empty if
    unknown.
    """

    path: Path
    name: str
    size: int
    stamp: str = ""


OnFailure = Callable[[Source, Exception], None]


class Unreadable(Exception):
    """A large file turned out to be unreadable or changed after a part of it was passed on."""

    def __init__(self, source: Source, reason: Exception):
        super().__init__(source, reason)
        self.source, self.reason = source, reason


@dataclass(frozen=True)
class ReadSource:
    """A source with its bytes."""

    source: Source
    size: int
    pieces: Iterable[bytes]


def read_sources(sources: Iterable[Source], failed: OnFailure) -> Iterator[ReadSource]:
    """Yield all sources that can be read and have not changed since they were listed, in order.

    Memory holds some megabytes of them. The pieces of a large file raise Unreadable.

    Args:
        sources: files to read.
        failed: is called with every other source and its error.
    """
    for batch in ordered_map(_read, _batches(sources), _AT_ONCE, ahead=_AHEAD):
        for source, data in batch:
            if isinstance(data, Exception):
                failed(source, data)
            elif data is not None:
                yield ReadSource(source, len(data), [data])
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
    """Read a batch: the contents of small files, and None for large ones."""
    small = [source for source in batch if source.size < _LARGE]
    together = iter(read_together([place for source in small if (place := remote(source.path))]))
    known = {source.path: _small(source, next(together) if remote(source.path) else None) for source in small}
    return [(source, known.get(source.path)) for source in batch]


def _small(source: Source, known: bytes | Exception | None) -> bytes | Exception:
    """Return the contents of a small file.

    Args:
        source: the file.
        known: its contents, or the error of an object store, which is tried again; None for local files.
    """
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


def _opened(source: Source, failed: OnFailure) -> Iterator[ReadSource]:
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
        yield ReadSource(source, opened.st_size, _pieces(source, file, opened))


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
    """Return the status of an open file.

    Raises:
        VerifyError: if it has changed since it was listed.
    """
    opened = files.status(file)
    same = source.stamp in ("", unchanged.stamp_of(opened))
    if not same and (has_version(opened) or opened.st_size != source.size):
        raise VerifyError(_CHANGED)
    return opened


def _check_again(source: Source, opened: os.stat_result) -> None:
    """Check that a local file was not written to since it was opened.

    Raises:
        VerifyError: if it was.
    """
    if not remote(source.path) and unchanged.has_changed(source.path, opened):
        raise VerifyError(_CHANGED)
