"""The way through: files are listed, planned into shards, read ahead, made to a tar, and compressed, all as a stream.

A shard is a .sqz file of a tar. Beside it lies the index of its members (codecs/stream/members.py).
"""

import random
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast

from squeeze.codecs.shards.reading import Found, Source, Unreadable, found
from squeeze.codecs.shards.tar import Entry, Tar
from squeeze.codecs.stream.compressor import compress_stream
from squeeze.codecs.stream.members import index_bytes, index_name
from squeeze.errors import SqueezeError
from squeeze.system import files
from squeeze.system.idempotent import replacing_or_equal
from squeeze.system.names import relative
from squeeze.system.storage import remote
from squeeze.system.temporary import MARK

__all__ = ["Made", "Shard", "check_targets", "listed", "make_shard", "sample", "write_shard"]


@dataclass(frozen=True)
class Shard:
    """One that is written: raw bytes of its tar, bytes of the file and of its index, and XXH3-64 of each member."""

    path: Path
    raw: int
    coded: int
    index: int
    checksums: "array[int]"

    @property
    def members(self) -> int:
        return len(self.checksums)


@dataclass(frozen=True)
class Made:
    """What became of sources: a shard, unless none of them could be read; and by their names why others are not in
    it."""

    shard: Shard | None
    left: dict[str, Exception] = field(default_factory=dict)


def listed(paths: Iterable[Path], root: Path, failed: Callable[[Path, Exception], None]) -> Iterator[Source]:
    """Files below a folder as they are called in shards; `failed` is told of those that are gone, of names that other
    systems would read as paths to somewhere else, and of objects whose keys are no paths: two could have one name."""
    for path in paths:
        try:
            name = relative(path.relative_to(root).as_posix())
            status = path.lstat() if remote(path) else path.stat()
        except (OSError, SqueezeError) as error:
            failed(path, error)
            continue
        yield Source(path, name, status.st_size, files.stamp_of(status))


def check_targets(target: Path, overwrite: bool) -> None:
    """As files.check_target, of a shard and its index."""
    for path in (target, index_name(target)):
        files.check_target(path, [], overwrite)


def make_shard(
    target: Path, sources: Iterable[Source], overwrite: bool = False, mark: str = MARK, **options: Any
) -> Made:
    """Write sources to one shard, and its index, as `write_shard`. sources: are taken again from their start where a
    large one turns out to be unreadable after a part of it was written: then the shard is begun anew without it."""
    bad: dict[str, Exception] = {}
    while True:
        left = dict(bad)

        def failed(source: Source, reason: Exception, left: dict[str, Exception] = left) -> None:
            left[source.name] = reason

        with closing(found((one for one in sources if one.name not in bad), failed)) as readable:  # type: ignore[type-var]
            if (first := next(readable, None)) is None:
                return Made(None, left)
            entries = map(_entry, chain([first], readable))
            try:
                return Made(write_shard(target, entries, overwrite, mark, **options), left)
            except Unreadable as error:
                bad[error.source.name] = error.reason


def write_shard(target: Path, entries: Iterable[Entry], overwrite: bool, mark: str = MARK, **options: Any) -> Shard:
    """Write one shard, and its index, which appears before it: each whole and verified, or not at all.

    `options` are those of `compress_stream`; mark: what temporary names end in. Raises SqueezeError where another shard
    is there already and may not be overwritten. An index without its shard is what a crash left.
    """
    tar = Tar(entries)
    with (
        replacing_or_equal(target, None, overwrite, mark) as sink,
        replacing_or_equal(index_name(target), None, overwrite or not target.exists(), mark) as beside,
    ):
        totals = compress_stream(cast(BinaryIO, tar), sink, **options)
        index = beside.write(index_bytes(bytes(tar.lines), totals.raw, tar.digest.intdigest()))
    return Shard(target, totals.raw, totals.coded, index, tar.checksums)


def _entry(one: Found) -> Entry:
    return Entry(one.source.name, one.size, one.pieces)


_FILES = 1000
_MOST = 1 << 14  # bytes of one


def sample(sources: Iterable[Source]) -> list[bytes]:
    """Starts of some files as they stand in a tar, each as likely as any other; the same of the same sources. What
    cannot be read is left out."""
    chance, chosen = random.Random(0), list[tuple[int, Source]]()
    for number, source in enumerate(sources):  # Vitter 1985, algorithm R
        place = number if number < _FILES else chance.randrange(number + 1)
        if place < len(chosen):
            chosen[place] = number, source
        elif place < _FILES:
            chosen.append((number, source))
    read = found((source for _, source in sorted(chosen, key=lambda one: one[0])), lambda source, error: None)
    return [_start(Entry(one.source.name, one.size, one.pieces)) for one in read]


def _start(entry: Entry) -> bytes:
    return Tar([entry]).read(min(entry.size, _MOST) + 512)
