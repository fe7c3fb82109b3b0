"""Which files share a shard, from a listing alone: in its order, with the same outcome wherever it is asked.

Shards that are there stay as they are. What is between two of them becomes what it would have become if all were made
at once, so that a run that was stopped ends as one that was not.
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
from squeeze.codecs.shards.tar import header_bytes, key_of, padded, tar_size
from squeeze.codecs.stream.members import MAX_TEXT
from squeeze.errors import OptionError, SqueezeError
from squeeze.system.remote_path import RemotePath
from squeeze.system.storage import remote

__all__ = ["Earlier", "Planned", "Sources", "Template", "plan"]

_NUMBER = re.compile(r"\{(?::0(\d)d?)?\}")


@dataclass(frozen=True)
class Template:
    """{} stands for 0, 1, ..., and {:06d} for 000000, 000001, .... Raises OptionError for any other name."""

    place: Path

    def __post_init__(self) -> None:
        if len(_NUMBER.findall(self.place.name)) != 1:
            raise OptionError(
                f"{self.place}: the name of a shard holds {{}} where its number goes, as in part-{{}}.tar.sqz"
            )

    def path(self, number: int) -> Path:
        """Of the shard with a number."""
        name = _NUMBER.sub(lambda found: f"{number:0{found[1] or 1}d}", self.place.name)
        return self.place.with_name(name)

    def made(self, name: str) -> bool:
        """Whether a whole name, as a manifest has it, is that of a shard."""
        whole = str(self.place.with_name(_NUMBER.sub("\0", self.place.name)))
        return re.fullmatch("[0-9]+".join(map(re.escape, whole.split("\0"))), name) is not None

    @property
    def dictionary(self) -> Path:
        """Of the shards, beside them: part-dictionary.sqzp for part-{}.tar.sqz."""
        return self.place.with_name(f"{self._before}dictionary.sqzp")

    @property
    def manifest(self) -> Path:
        """Of the run: part-manifest.jsonl, beside shards on this machine, and for URLs in the current folder."""
        name = f"{self._before}manifest.jsonl"
        return Path(name) if remote(self.place) else self.place.with_name(name)

    @property
    def _before(self) -> str:
        return self.place.name[: self.place.name.index("{")]

    def check(self, root: Path) -> None:
        """Raises SqueezeError where shards would lie in the folder that they are made of."""
        if self.place.parent.resolve().is_relative_to(root.resolve()):
            raise SqueezeError(f"{self.place.parent} lies in {root}, whose files go into the shards: write elsewhere")


_Row = tuple[str | tuple[str, str | None], str, int, str]  # a path, or what names an object; the rest of a source
_LINE = 60  # bytes of a line of the index, beside the name
_ROWS = 512  # sources that are compressed together


class Sources:
    """Sources in some 25 bytes each: a shard may have a million."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._rows: list[_Row] = []
        self._count = 0

    def append(self, source: Source) -> None:
        place = remote(source.path)
        path = place.named if place else str(source.path)
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
    """A shard to be made. size: bytes of its tar."""

    target: Path
    sources: Sources
    size: int


class Earlier(Protocol):
    """What runs before have made."""

    def shard_of(self, source: Source) -> int | None:
        """A number for the shard that holds a file; None where none does."""

    def has_failed(self, source: Source) -> bool:
        """Whether a shard that was made had to leave a file out."""

    def is_there(self, target: Path) -> bool:
        """Whether a shard was made."""


class _Nothing:
    def shard_of(self, source: Source) -> None:
        return None

    def has_failed(self, source: Source) -> bool:
        return False

    def is_there(self, target: Path) -> bool:
        return False


def plan(sources: Iterable[Source], targets: Template, size: int, earlier: Earlier | None = None) -> Iterator[Planned]:
    """Shards of at most `size` raw bytes for all sources that are in none.

    Files of one sample lie in one shard, and one after the other, unless they alone are larger than it. What is missing
    within a shard that is there, such as a file that could not be read, goes into shards of its own at the end.
    """
    earlier = earlier or _Nothing()
    names = (name for name in map(targets.path, count()) if not earlier.is_there(name))
    filling, rest, before = _Filling(size), Sources(), None

    def shards(filled: Iterable[tuple[Sources, int]]) -> Iterator[Planned]:
        for those, raw in filled:
            yield Planned(next(names), those, raw)

    for source in sources:
        there = earlier.shard_of(source)
        if there is not None:
            if there == before:
                for missing in filling.taken_out():
                    rest.append(missing)
            yield from shards(filling.end())
            before = there
        elif earlier.has_failed(source):
            rest.append(source)
        else:
            yield from shards(filling.add(source))
    yield from shards(filling.end())
    for source in rest:
        yield from shards(filling.add(source))
    yield from shards(filling.end())


class _Filling:
    """The shard that is being filled, and the sample that follows. Gives shards that are full: their sources, and the
    bytes of their tars."""

    def __init__(self, size: int):
        self._size = size
        self._shard, self._taken, self._text = Sources(), 0, 0
        self._sample: list[Source] = []
        self._room = 0  # that the sample takes, about

    def add(self, source: Source) -> Iterator[tuple[Sources, int]]:
        own = padded(source.size) + padded(1)
        if self._sample:
            another = key_of(source.name) != key_of(self._sample[0].name)
            if another or tar_size(self._room + own) > self._size:
                yield from self._place()
        self._sample.append(source)
        self._room += own

    def end(self) -> Iterator[tuple[Sources, int]]:
        """Of all that was added."""
        yield from self._place()
        if self._shard:
            yield self._full()

    def taken_out(self) -> list[Source]:
        """All that is in no shard yet, and will be in none."""
        left = [*self._shard, *self._sample]
        self._shard, self._taken, self._text = Sources(), 0, 0
        self._sample, self._room = [], 0
        return left

    def _place(self) -> Iterator[tuple[Sources, int]]:
        """The sample goes into the shard, or the next one."""
        own = sum(len(header_bytes(one.name, one.size)) + padded(one.size) for one in self._sample)
        lines = sum(len(json.dumps(one.name)) + _LINE for one in self._sample)
        if self._shard and (tar_size(self._taken + own) > self._size or self._text + lines > MAX_TEXT):
            yield self._full()
        for one in self._sample:
            self._shard.append(one)
        self._taken, self._text = self._taken + own, self._text + lines
        self._sample, self._room = [], 0

    def _full(self) -> tuple[Sources, int]:
        filled = self._shard, tar_size(self._taken)
        self._shard, self._taken, self._text = Sources(), 0, 0
        return filled
