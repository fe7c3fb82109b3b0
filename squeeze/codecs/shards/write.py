"""Writing shards: files are listed, planned into shards, read ahead, and compressed as a tar, all in one stream.

A shard is a .sqz file of a tar. The index of its members is a file next to it (codecs/stream/members.py).
"""

import random
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast

from squeeze.codecs.shards.reading import ReadSource, Source, Unreadable, read_sources
from squeeze.codecs.shards.tar import Entry, Tar
from squeeze.codecs.stream.compressor import compress_stream
from squeeze.codecs.stream.members import index_bytes, index_name
from squeeze.errors import SqueezeError
from squeeze.system import files, unchanged
from squeeze.system.idempotent import replacing_or_equal
from squeeze.system.storage import relative, remote
from squeeze.system.temporary import MARK

__all__ = ["Shard", "ShardResult", "check_targets", "list_sources", "make_shard", "sample", "write_shard"]


@dataclass(frozen=True)
class Shard:
    """A shard that was written: raw bytes of its tar, bytes of the file and of its index, and XXH3-64 of each
    member."""

    path: Path
    raw: int
    coded: int
    index: int
    checksums: "array[int]"

    @property
    def members(self) -> int:
        return len(self.checksums)


@dataclass(frozen=True)
class ShardResult:
    """A shard, or None if no source could be read, and the errors of sources that it lacks, by name."""

    shard: Shard | None
    skipped: dict[str, Exception] = field(default_factory=dict)


def list_sources(paths: Iterable[Path], root: Path, failed: Callable[[Path, Exception], None]) -> Iterator[Source]:
    """Yield files below a folder with their names in shards.

    Args:
        paths: the files.
        root: the folder that names are relative to.
        failed: is called with files that are gone, names that other systems would read as paths elsewhere, and objects
            whose keys are not paths: two of them could get one name.
    """
    for path in paths:
        try:
            name = relative(path.relative_to(root).as_posix())
            status = path.lstat() if remote(path) else path.stat()
        except (OSError, SqueezeError) as error:
            failed(path, error)
            continue
        yield Source(path, name, status.st_size, unchanged.stamp_of(status))


def check_targets(target: Path, overwrite: bool) -> None:
    """Check that a shard and its index may be written, as `files.check_target` does."""
    for path in (target, index_name(target)):
        files.check_target(path, [], overwrite)


def make_shard(
    target: Path, sources: Iterable[Source], overwrite: bool = False, mark: str = MARK, **options: Any
) -> ShardResult:
    """Write sources to a shard and its index, as `write_shard` does.

    Args:
        target: path of the shard.
        sources: are iterated again if a large file turns out to be unreadable after a part of it was written: then the
            shard is started again without it.
        overwrite: replace an existing shard.
        mark: suffix of temporary names.
        options: of `compress_stream`.
    """
    bad: dict[str, Exception] = {}
    while True:
        skipped = dict(bad)

        def failed(source: Source, reason: Exception, skipped: dict[str, Exception] = skipped) -> None:
            skipped[source.name] = reason

        with closing(read_sources((one for one in sources if one.name not in bad), failed)) as readable:  # type: ignore[type-var]
            if (first := next(readable, None)) is None:
                return ShardResult(None, skipped)
            entries = map(_entry, chain([first], readable))
            try:
                return ShardResult(write_shard(target, entries, overwrite, mark, **options), skipped)
            except Unreadable as error:
                bad[error.source.name] = error.reason


def write_shard(target: Path, entries: Iterable[Entry], overwrite: bool, mark: str = MARK, **options: Any) -> Shard:
    """Write a shard, and its index, which appears first: each complete and verified, or not at all.

    An index without its shard is left by a crash, and may be overwritten.

    Args:
        target: path of the shard.
        entries: files of its tar.
        overwrite: replace an existing shard.
        mark: suffix of temporary names.
        options: of `compress_stream`.

    Raises:
        SqueezeError: if another shard exists and `overwrite` is false.
    """
    tar = Tar(entries)
    with (
        replacing_or_equal(target, None, overwrite, mark) as sink,
        replacing_or_equal(index_name(target), None, overwrite or not target.exists(), mark) as beside,
    ):
        totals = compress_stream(cast(BinaryIO, tar), sink, **options)
        index = beside.write(index_bytes(bytes(tar.lines), totals.raw, tar.digest.intdigest()))
    return Shard(target, totals.raw, totals.coded, index, tar.checksums)


def _entry(one: ReadSource) -> Entry:
    return Entry(one.source.name, one.size, one.pieces)


_FILES = 1000
_MOST = 1 << 14  # bytes of a file


def sample(sources: Iterable[Source]) -> list[bytes]:
    """Return the starts of about a thousand files with their tar headers, to train a dictionary on.

    Reservoir sampling (Vitter 1985, algorithm R) chooses them with equal probability; the same sources give the same
    sample. Files that cannot be read are left out.
    """
    chance, chosen = random.Random(0), list[tuple[int, Source]]()
    for number, source in enumerate(sources):  # Vitter 1985, algorithm R
        place = number if number < _FILES else chance.randrange(number + 1)
        if place < len(chosen):
            chosen[place] = number, source
        elif place < _FILES:
            chosen.append((number, source))
    read = read_sources((source for _, source in sorted(chosen, key=lambda one: one[0])), lambda source, error: None)
    return [_start(Entry(one.source.name, one.size, one.pieces)) for one in read]


def _start(entry: Entry) -> bytes:
    return Tar([entry]).read(min(entry.size, _MOST) + 512)
