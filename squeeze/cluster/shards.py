"""Shards of many small files, made here or by the workers of a cluster and recorded in a manifest.

The manifest has a record of each file, whose output is a shard. They are followed by a record of the shard itself, and
do not count without it. So a run can resume after a stop at any point. Its output can be verified: each file by the
index of its shard, and each shard by its checksum.
"""

import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from squeeze.cluster.engine import Call, Engine, Lost, Needs
from squeeze.cluster.files import checksum_of
from squeeze.cluster.manifest import Manifest, Record, read_options, read_records
from squeeze.cluster.operations import EXPECTED_ERRORS, File, FileResult, describe_error
from squeeze.cluster.run import ATTEMPTS, first_line
from squeeze.cluster.tasks import run_calls
from squeeze.codecs.shards.plan import Planned, Template
from squeeze.codecs.shards.reading import Source
from squeeze.codecs.shards.write import make_shard
from squeeze.codecs.stream.members import Member
from squeeze.codecs.stream.reader import open_reader as open_stream
from squeeze.errors import SqueezeError, escaped, printable
from squeeze.system import storage
from squeeze.system.remote_path import look_together

__all__ = ["SHARDS", "Noted", "Result", "Task", "by_workers", "files_of", "make_in_process", "note", "proved"]

SHARDS = "shards"  # the operation of their manifest
_ASKED = 64  # objects per concurrent request to a store
_STAMP = (1 << 32) - 1
_READING = 1 << 27  # bytes of memory for files that are read ahead, and for an index


@dataclass(frozen=True)
class Task:
    """The settings of all shards of a run.

    Attributes:
        options: Keyword arguments of `compress_stream`.
        mark: The end of temporary names.
        overwrite: Whether files that the manifest does not list may be replaced. If not, they must be equal.
    """

    options: dict[str, Any]
    mark: str
    overwrite: bool


@dataclass(frozen=True)
class Result:
    """The result of a planned shard: the bytes of its tar, its file and its index, 0 if no file of it could be read.

    Attributes:
        checksums: The XXH3-64 of its members, in order.
        excluded: The reason for each file that is not in it, by name.
        error: The error of the shard, or "".
    """

    raw: int = 0
    coded: int = 0
    index: int = 0
    checksums: "array[int]" = field(default_factory=lambda: array("Q"))
    excluded: dict[str, str] = field(default_factory=dict)
    checksum: str = ""
    seconds: float = 0.0
    error: str = ""
    retryable: bool = False
    attempts: int = 1
    lost: int = 0


def make_in_process(planned: Planned, task: Task, **options: Any) -> Result:
    """Make a shard in this process. `options` are keyword arguments of `compress_stream`. Raise the errors of
    `make_shard`.
    """
    started = time.perf_counter()
    made = make_shard(planned.target, planned.sources, task.overwrite, task.mark, **(task.options | options))
    left = {name: describe_error(reason)[0] for name, reason in made.skipped.items()}
    if (shard := made.shard) is None:
        return Result(excluded=left)
    checksum, seconds = checksum_of(shard.path), time.perf_counter() - started
    return Result(shard.raw, shard.coded, shard.index, shard.checksums, left, checksum, seconds)


def _guarded(planned: Planned, task: Task) -> Result:
    """Make a shard on a worker, with its error as a result."""
    try:
        return make_in_process(planned, task)
    except EXPECTED_ERRORS as error:
        message, again = describe_error(error)
        return Result(error=message, retryable=again)


def by_workers(
    engine: Engine[Planned], shards: Iterable[Planned], task: Task, needs: Needs
) -> Iterator[tuple[Planned, Result]]:
    """Yield the results of shards that workers make. `needs` are those of a call, without the memory for read-ahead."""
    shared, needs = engine.share(task), replace(needs, memory=needs.memory + _READING)

    def call(planned: Planned) -> Call[Planned]:
        name = f"shard {escaped(planned.target.name)}, {len(planned.sources)} files"
        return Call(planned, name, _guarded, (planned, shared), needs)

    for outcome in run_calls(engine, map(call, shards), lambda result: result.retryable):
        result = outcome.result
        if outcome.error is not None:
            lost = isinstance(outcome.error, Lost)
            message = f"its worker was lost, {ATTEMPTS} times" if lost else type(outcome.error).__name__
            result = Result(error=f"{message}: {first_line(outcome.error)}")
        yield outcome.key, replace(result, attempts=outcome.attempts, lost=outcome.lost)


def files_of(planned: Planned, result: Result) -> Iterator[FileResult]:
    """Yield the result of each file of a shard. Its coded size is its share of the shard's bytes."""
    checksums = iter(result.checksums)
    total = sum(source.size for source in planned.sources if source.name not in result.excluded)
    before = seen = 0
    for source in planned.sources:
        file = File(source.path, source.size, source.stamp, planned.target)
        if error := result.excluded.get(source.name):
            yield FileResult(file, error=error)
            continue
        seen += source.size
        part = result.coded * seen // total if total else 0
        yield FileResult(file, source.size, part - before, f"{next(checksums):016x}")
        before = part


def note(manifest: Manifest, planned: Planned, result: Result) -> Iterator[FileResult]:
    """Record each file and yield it, and finally record the shard, which makes them count."""
    target, attempts = str(planned.target), result.attempts
    for result_of_file in () if result.error else files_of(planned, result):
        about = str(result_of_file.file.source), result_of_file.file.size, result_of_file.file.stamp
        if result_of_file.error:
            manifest.note(Record(*about, attempts=attempts, error=result_of_file.error))
        else:
            manifest.note(Record(*about, target, result.coded, result_of_file.checksum, attempts))
        yield result_of_file
    if result.error:
        manifest.note(Record(target, 0, "", attempts=attempts, error=result.error))
    elif result.coded:
        manifest.note(Record(target, result.coded, "", target, result.coded, result.checksum, attempts))


class Noted:
    """The shards in a manifest that still exist, as shards.plan needs them. Memory holds one number for each file."""

    def __init__(self, manifest: Path, targets: Template):
        self._of: dict[int, int] = {}  # from the hash of a source to the hash of its stamp and the number of its shard
        self._failed: set[int] = set()
        count, open_, whole = 0, dict[str, int](), dict[str, tuple[int, int]]()
        for record in read_records(manifest) if manifest.exists() else ():
            source, output = hash(record.source), record.output
            if output and output not in open_:
                open_[output], count = count, count + 1
            if not output:
                self._failed.add(source)
            elif output == record.source:
                whole[output] = open_.pop(output), record.output_size
            else:
                self._of[source] = open_[output] << 32 | hash(record.stamp) & _STAMP
                self._failed.discard(source)
        there = _existing({output: size for output, (_, size) in whole.items() if targets.matches(output)})
        self._shards = {number: output for output, (number, _) in whole.items() if output in there}
        self._outputs = set(self._shards.values())

    def shard_of(self, source: Source) -> int | None:
        number = self._of.get(hash(str(source.path)), -1) >> 32
        return number if number in self._shards else None

    def has_failed(self, source: Source) -> bool:
        return hash(str(source.path)) in self._failed

    def is_there(self, target: Path) -> bool:
        return str(target) in self._outputs

    def changed(self, source: Source) -> str:
        """Return the shard that holds an earlier state of a file, or None."""
        if (number := self.shard_of(source)) is None:
            return ""
        same = self._of[hash(str(source.path))] & _STAMP == hash(source.stamp) & _STAMP
        return "" if same else self._shards[number]


def _existing(sizes: dict[str, int]) -> set[str]:
    """Return which outputs exist with these sizes."""
    found, names = set(), iter(sizes)
    while some := list(islice(names, _ASKED)):
        paths = [storage.path_of(name) for name in some]
        look_together([place for place in map(storage.remote, paths) if place])
        for name, path in zip(some, paths, strict=True):
            with suppress(FileNotFoundError):
                if (path.lstat() if storage.remote(path) else path.stat()).st_size == sizes[name]:
                    found.add(name)
    return found


def proved(
    manifest: Path,
    records: Iterable[Record],
    attempt: Callable[[str], AbstractContextManager[None]],
    roots: list[Path],
    **options: Any,
) -> Iterator[Record]:
    """Yield the records of shards, and of what failed, among those of a manifest.

    Records of files are held against the indexes of their shards, and attempt(source) is around what this raises.

    Args:
        roots: folders and URLs in which shards lie; no other file is opened.
        options: keywords of `squeeze.open`.
    """
    root = str(read_options(manifest).get("root", ""))
    for output, those in groupby(records, key=lambda record: record.output):
        members = None
        for record in those:
            if output in ("", record.source):
                yield record
                continue
            if members is None:
                members = {}
                with (
                    attempt(printable(output)),
                    suppress(FileNotFoundError),  # reported by the shard's own record
                    open_stream(storage.resolve_untrusted(output, roots), **options) as shard,
                ):
                    members = shard.members()
            if members:
                with attempt(printable(record.source)):
                    _prove(record, members.get(record.source.removeprefix(root).removeprefix("/")))


def _prove(record: Record, member: Member | None) -> None:
    if member is None:
        raise SqueezeError(f"{printable(record.output)} does not contain it")
    if (member.size, f"{member.checksum:016x}") != (record.size, record.checksum):
        raise SqueezeError(f"{printable(record.output)} has other content for it than the manifest's checksum")
