"""The files of shards, read ahead: small ones together, so that an object store is asked for many at a time."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from squeeze.errors import VerifyError
from squeeze.system import files
from squeeze.system.in_order import ordered_map
from squeeze.system.remote_path import read_together
from squeeze.system.storage import remote

__all__ = ["Failed", "Found", "Source", "found"]

_LARGE = 1 << 20  # bytes from which a file is read when it is its turn
_BATCH, _BATCH_FILES = 1 << 20, 512  # few, so that what is wanted first is soon there
_AT_ONCE = 8  # batches that are read
_AHEAD = 24  # batches that are read or wait, so that there is more than a block when the one before it is coded
_PIECE = 1 << 20
_CHANGED = "changed while it was read: compress it again when nothing writes to it"
Failed = Callable[[Path, Exception], None]


@dataclass(frozen=True)
class Source:
    """A file of a corpus. name: within a shard; size: in bytes, when it was listed; shard: a number that it shares with
    others of its shard."""

    path: Path
    name: str
    size: int
    shard: int = 0


@dataclass(frozen=True)
class Found:
    """A source as it was read."""

    source: Source
    size: int
    pieces: Iterable[bytes]


def found(sources: Iterable[Source], failed: Failed) -> Iterator[Found]:
    """All sources that can be read, in order; `failed` is told of the others. Memory holds some megabytes of them.

    The pieces of a large one raise OSError where reading fails, and VerifyError where it is another than it was."""
    for batch in ordered_map(_read, _batches(sources), _AT_ONCE, ahead=_AHEAD):
        for source, data in batch:
            if isinstance(data, Exception):
                failed(source.path, data)
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
    places = [place for source in small if (place := remote(source.path))]
    together = iter(read_together(places))
    known = {source.path: next(together) if remote(source.path) else _content(source.path) for source in small}
    return [(source, known.get(source.path)) for source in batch]


def _content(path: Path) -> bytes | Exception:
    try:
        with path.open("rb") as file:
            opened = files.status(file)
            data = file.read()
            if files.has_changed(path, opened):
                raise VerifyError(_CHANGED)
            return data
    except (OSError, VerifyError) as error:
        return error


def _opened(source: Source, failed: Failed) -> Iterator[Found]:
    try:
        file = source.path.open("rb")
    except OSError as error:
        failed(source.path, error)
        return
    with file:
        size = files.status(file).st_size
        yield Found(source, size, _pieces(source.path, file, size))


def _pieces(path: Path, file: BinaryIO, size: int) -> Iterator[bytes]:
    opened = files.status(file)
    while size and (piece := file.read(min(size, _PIECE))):
        size -= len(piece)
        yield piece
    if size or file.read(1) or (not remote(path) and files.has_changed(path, opened)):
        raise VerifyError(f"{path}: {_CHANGED}")
