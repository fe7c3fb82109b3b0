"""Assigning files to shards, in the order of a listing: every machine gets the same plan from the same listing.

Existing shards stay as they are. Files between two of them are planned as if all shards were made at once, so an
interrupted run ends like an uninterrupted one.
"""

import json
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Protocol, cast

from squeeze.codecs.shards.reading import Source
from squeeze.codecs.shards.tar import header_bytes, padded, sample_key, tar_size
from squeeze.codecs.stream.members import MAX_TEXT
from squeeze.errors import OptionError, SqueezeError
from squeeze.system.remote_path import RemotePath
from squeeze.system.storage import remote

__all__ = ["Planned", "PreviousRuns", "Sources", "Template", "plan"]

_NUMBER = re.compile(r"\{(?::0(\d)d?)?\}")


@dataclass(frozen=True)
class Template:
    """A name pattern of shards: {} is the number 0, 1, ..., and {:06d} is 000000, 000001, ...."""

    place: Path

    def __post_init__(self) -> None:
        if len(_NUMBER.findall(self.place.name)) != 1:
            raise OptionError(
                f"{self.place}: the name of shards needs exactly one {{}} for their number, such as part-{{}}.tar.sqz"
            )

    def path(self, number: int) -> Path:
        """Return the path of the shard with a number."""
        name = _NUMBER.sub(lambda found: f"{number:0{found[1] or 1}d}", self.place.name)
        return self.place.with_name(name)

    def matches(self, name: str) -> bool:
        """Return whether a full name, as a manifest has it, is that of a shard."""
        whole = str(self.place.with_name(_NUMBER.sub("\0", self.place.name)))
        return re.fullmatch("[0-9]+".join(map(re.escape, whole.split("\0"))), name) is not None

    @property
    def dictionary(self) -> Path:
        """The path of the shards' dictionary, next to them: part-dictionary.sqzp for part-{}.tar.sqz."""
        return self.place.with_name(f"{self._before}dictionary.sqzp")

    @property
    def manifest(self) -> Path:
        """The path of the run's manifest, part-manifest.jsonl: next to local shards, and in the current folder for
        URLs."""
        name = f"{self._before}manifest.jsonl"
        return Path(name) if remote(self.place) else self.place.with_name(name)

    @property
    def _before(self) -> str:
        return self.place.name[: self.place.name.index("{")]

    def check(self, root: Path) -> None:
        """Check that shards are not written into the folder of their files.

        Raises:
            SqueezeError: if they would be.
        """
        if self.place.parent.resolve().is_relative_to(root.resolve()):
            raise SqueezeError(f"{self.place.parent} is in {root}, whose files go into the shards: write elsewhere")


_Row = tuple[str | tuple[str, str | None], str, int, str]  # path or names of an object; name, size and stamp
_LINE = 60  # bytes of a line of the index without the name
_ROWS = 512  # sources in a compressed block


class Sources:
    """A list of sources that takes about 25 bytes for each, since a shard may have a million."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._rows: list[_Row] = []
        self._count = 0

    def append(self, source: Source) -> None:
        place = remote(source.path)
        path = place.url_and_key if place else str(source.path)
        self._rows.append((path, source.name, source.size, source.stamp))
        self._count += 1
        if len(self._rows) == _ROWS:
            self._blocks.append(zlib.compress(json.dumps(self._rows).encode(), 1))
            self._rows = []

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Source]:
        for block in self._blocks:
            yield from map(_source, json.loads(zlib.decompress(block)))
        yield from map(_source, self._rows)


def _source(row: _Row) -> Source:
    path, name, size, stamp = row
    return Source(Path(path) if isinstance(path, str) else cast(Path, RemotePath.listed(path, size)), name, size, stamp)


@dataclass(frozen=True)
class Planned:
    """A shard to be made from sources; `size` is the bytes of its tar."""

    target: Path
    sources: Sources
    size: int


class PreviousRuns(Protocol):
    """The shards that earlier runs have made."""

    def shard_of(self, source: Source) -> int | None:
        """Return a number for the shard that holds a file, or None."""

    def has_failed(self, source: Source) -> bool:
        """Return whether an existing shard had to leave a file out."""

    def is_there(self, target: Path) -> bool:
        """Return whether a shard exists."""


class _NoPreviousRuns:
    def shard_of(self, source: Source) -> None:
        return None

    def has_failed(self, source: Source) -> bool:
        return False

    def is_there(self, target: Path) -> bool:
        return False


def plan(
    sources: Iterable[Source], targets: Template, size: int, earlier: PreviousRuns | None = None
) -> Iterator[Planned]:
    """Yield shards for all sources that are in none.

    Files of one sample are in one shard, one after the other, unless they are larger than a shard. Files that an
    existing shard lacks, such as one that could not be read, go into shards of their own at the end.

    Args:
        sources: in the order of the listing.
        targets: names of the shards.
        size: most bytes of a shard's tar.
        earlier: shards of earlier runs.
    """
    earlier = earlier or _NoPreviousRuns()
    names = (name for name in map(targets.path, count()) if not earlier.is_there(name))
    builder, rest, before = _ShardBuilder(size), Sources(), None

    def shards(filled: Iterable[tuple[Sources, int]]) -> Iterator[Planned]:
        for sources_in, raw in filled:
            yield Planned(next(names), sources_in, raw)

    for source in sources:
        there = earlier.shard_of(source)
        if there is not None:
            if there == before:
                for missing in builder.discard():
                    rest.append(missing)
            yield from shards(builder.end())
            before = there
        elif earlier.has_failed(source):
            rest.append(source)
        else:
            yield from shards(builder.add(source))
    yield from shards(builder.end())
    for source in rest:
        yield from shards(builder.add(source))
    yield from shards(builder.end())


class _ShardBuilder:
    """The shard that is being filled and the sample after it; yields full shards as (sources, bytes of the tar)."""

    def __init__(self, size: int):
        self._size = size
        self._shard, self._bytes, self._text = Sources(), 0, 0
        self._sample: list[Source] = []
        self._room = 0  # estimated bytes of the sample

    def add(self, source: Source) -> Iterator[tuple[Sources, int]]:
        own = padded(source.size) + padded(1)
        if self._sample:
            another = sample_key(source.name) != sample_key(self._sample[0].name)
            if another or tar_size(self._room + own) > self._size:
                yield from self._place()
        self._sample.append(source)
        self._room += own

    def end(self) -> Iterator[tuple[Sources, int]]:
        """Yield the rest of what was added."""
        yield from self._place()
        if self._shard:
            yield self._finish()

    def discard(self) -> list[Source]:
        """Return and forget the sources that are in no shard yet."""
        left = [*self._shard, *self._sample]
        self._shard, self._bytes, self._text = Sources(), 0, 0
        self._sample, self._room = [], 0
        return left

    def _place(self) -> Iterator[tuple[Sources, int]]:
        """Put the sample into the shard, or into the next one if it does not fit."""
        own = sum(len(header_bytes(one.name, one.size)) + padded(one.size) for one in self._sample)
        lines = sum(len(json.dumps(one.name)) + _LINE for one in self._sample)
        if self._shard and (tar_size(self._bytes + own) > self._size or self._text + lines > MAX_TEXT):
            yield self._finish()
        for one in self._sample:
            self._shard.append(one)
        self._bytes, self._text = self._bytes + own, self._text + lines
        self._sample, self._room = [], 0

    def _finish(self) -> tuple[Sources, int]:
        filled = self._shard, tar_size(self._bytes)
        self._shard, self._bytes, self._text = Sources(), 0, 0
        return filled
