"""The way through: files are listed, put into shards, read ahead, made to a tar, and compressed, all as a stream.

A shard is a .sqz file of a tar. Beside it lies the index of its members (codecs/stream/members.py).
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, cast

from squeeze.codecs.stream.compressor import compress_stream
from squeeze.codecs.stream.members import MAX_TEXT, index_bytes, index_name
from squeeze.errors import SqueezeError
from squeeze.shards.reading import Failed, Found, Source, found
from squeeze.shards.tar import Entry, Tar, header_bytes, key_of, padded, tar_size
from squeeze.shards.template import Template
from squeeze.system import files
from squeeze.system.storage import remote

__all__ = ["Shard", "listed", "write_shard", "write_shards"]

_LINE = 60  # bytes of a line of the index, beside the name


@dataclass(frozen=True)
class Shard:
    """One that is written: raw bytes of its tar, and bytes of the file and of its index."""

    path: Path
    members: int
    raw: int
    coded: int
    index: int


def listed(paths: Iterable[Path], root: Path, failed: Failed) -> Iterator[Source]:
    """Files below a folder as they are called in shards; `failed` is told of those that are gone, and of objects whose
    keys are no paths: two could have one name."""
    for path in paths:
        try:
            name = path.relative_to(root).as_posix()
            status = path.lstat() if remote(path) else path.stat()
        except (OSError, SqueezeError) as error:
            failed(path, error)
            continue
        yield Source(path, name, status.st_size)


def write_shards(
    sources: Iterable[Source],
    targets: Template,
    size: int,
    *,
    failed: Failed,
    overwrite: bool = False,
    **options: Any,
) -> Iterator[Shard]:
    """Write all sources to shards of at most `size` raw bytes, and tell of each when it is there.

    Files of one sample lie in one shard, and one after the other, unless they alone are larger than it. `options` are
    those of `compress_stream`; `failed` is told of each file that cannot be read, which is left out. A shard appears
    whole and verified, after its index, or not at all. Raises SqueezeError where a shard is there already and may not
    be overwritten, and VerifyError where a large file changes while it is read.
    """
    groups = groupby(found(_placed(sources, size), failed), key=lambda one: one.source.shard)
    for number, (_, group) in enumerate(groups):
        target = targets.path(number)
        for path in (target, index_name(target)):
            files.check_target(path, [], overwrite)
        yield write_shard(target, map(_entry, group), overwrite, **options)


def write_shard(target: Path, entries: Iterable[Entry], overwrite: bool, **options: Any) -> Shard:
    """Write one shard, and its index, which appears before it."""
    tar = Tar(entries)
    with (
        files.replacing(target, overwrite=overwrite) as sink,
        files.replacing(index_name(target), overwrite=overwrite) as beside,
    ):
        totals = compress_stream(cast(BinaryIO, tar), sink, **options)
        index = beside.write(index_bytes(bytes(tar.lines), totals.raw, tar.digest.intdigest()))
    return Shard(target, tar.count, totals.raw, totals.coded, index)


def _entry(one: Found) -> Entry:
    return Entry(one.source.name, one.size, one.pieces)


def _placed(sources: Iterable[Source], size: int) -> Iterator[Source]:
    """Sources with the numbers of their shards."""
    shard = taken = text = 0
    for sample in _samples(sources, size):
        own = sum(len(header_bytes(one.name, one.size)) + padded(one.size) for one in sample)
        lines = sum(len(json.dumps(one.name)) + _LINE for one in sample)
        if taken and (tar_size(taken + own) > size or text + lines > MAX_TEXT):
            shard, taken, text = shard + 1, 0, 0
        taken, text = taken + own, text + lines
        yield from (replace(one, shard=shard) for one in sample)


def _samples(sources: Iterable[Source], size: int) -> Iterator[list[Source]]:
    """Files of one sample that follow each other, as long as they are not more than a shard."""
    for _, group in groupby(sources, key=lambda source: key_of(source.name)):
        sample: list[Source] = []
        taken = 0
        for source in group:
            own = padded(source.size) + padded(1)
            if sample and tar_size(taken + own) > size:
                yield sample
                sample, taken = [], 0
            sample.append(source)
            taken += own
        yield sample
