"""The main path of a run: files are listed, planned into calls, run by workers, and recorded in a manifest.

Some failures may pass: a lost worker or node, a file that changes, a disk that does not answer. They are retried, each
file in a call of its own, so that a file that kills its worker does not affect others. The driver holds the files of
running calls, no files before they are listed, and a number for each recorded file.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

from squeeze.cluster import files as work
from squeeze.cluster.engine import Call, Engine, Lost, Needs
from squeeze.cluster.manifest import Manifest, Record
from squeeze.cluster.operations import COMPRESS, PACK, File, FileResult, Part, Task
from squeeze.cluster.planning import CompressedFiles, Planned, Planner
from squeeze.errors import ClusterError, escaped

__all__ = ["ATTEMPTS", "FILES", "LEAST_WAIT", "Kind", "Run", "first_line", "pause"]

ATTEMPTS = 4
LEAST_WAIT = 0.1  # seconds
_STEP = 1 << 27  # memory needs are rounded up to multiples, since Ray keeps a queue for each value
PAUSE = 5.0  # seconds before a retry, doubled each time; calls of lost workers are retried at once


class Plans(Protocol):
    """A planner of calls."""

    def calls(self, files: Iterable[File], at_once: Callable[[], float]) -> Iterator[Planned]:
        """Yield groups of files and all parts of large files.

        `at_once` returns the current number of concurrent calls.
        """


@dataclass(frozen=True)
class Kind:
    """The kind of work: how it is planned, and the three functions that workers run."""

    planner: Callable[[Task, float], Plans]
    process_files: Callable[[Sequence[File], Task], list[FileResult]]
    part: Callable[[Part, Task], FileResult]
    join: Callable[[File, int, Task], FileResult]


FILES = Kind(Planner, work.process_files, work.process_part, work.join_parts)


@dataclass
class _SplitFile:
    """A file that is processed in parts."""

    file: File
    needs: Needs
    parts: list[Part]
    waiting: int
    attempts: int = 1
    joins: int = 0  # tries of joining the parts
    reported: int = 0  # bytes of the file that were reported as progress


@dataclass(frozen=True)
class _Batch:
    """The files of one call and how often they were tried."""

    files: Sequence[File]
    needs: Needs
    attempts: int = 1


@dataclass(frozen=True)
class _Piece:
    """A part of a file, or the joining of all parts if `part` is None."""

    split_file: _SplitFile
    part: Part | None
    attempts: int = 1


_Key = _Batch | _Piece


@dataclass
class Run:
    """One task over many files.

    Args:
        engine: The workers.
        task: The task.
        manifest: Where results are recorded.
        needs: The needs of a call, except memory that the planner knows.
        seconds: The intended duration of a call.
        progress: Called with the number of bytes of sources that were done since the last call.
        kind: The kind of work.
    """

    engine: Engine[Any]
    task: Task
    manifest: Manifest | None
    needs: Needs
    seconds: float = 30.0
    kind: Kind = FILES
    progress: Callable[[int], None] = lambda count: None
    failures: int = 0
    files: int = 0
    lost: int = 0  # calls whose worker or node was lost
    calls: int = 0
    ended: int = 0  # calls that have ended
    _ready: deque[Call[_Key]] = field(default_factory=deque)
    _later: list[tuple[float, Call[_Key]]] = field(default_factory=list)  # retries with their earliest time

    @cached_property
    def _shared(self) -> Any:
        return self.engine.share(self.task)

    def results(self, files: Iterable[File]) -> Iterator[FileResult]:
        """Yield the result of each file after it was recorded.

        Raises ClusterError, and leaves no manifest if that happens before anything was done.
        """
        try:
            yield from self._results(files)
        except ClusterError:
            if self.manifest and not self.ended:
                self.manifest.withdraw()
            raise

    def _results(self, files: Iterable[File]) -> Iterator[FileResult]:
        planned = self._planned(files)
        while True:
            while self.engine.has_room(self.needs) and (call := self._next_call(planned)):
                if self.manifest:
                    self.manifest.begin()  # before a worker may write
                self.engine.submit(call)
                self.calls += 1
            wait = max(min(when for when, _ in self._later) - time.monotonic(), LEAST_WAIT) if self._later else None
            if self.engine.is_busy:
                if ended := self.engine.next(wait):
                    self.ended += 1
                    call, result, error = ended
                    yield from self._ended(call.key, result, error)
            elif wait is not None:
                time.sleep(wait)
            else:
                break

    def _next_call(self, planned: Iterator[Call[_Key]]) -> Call[_Key] | None:
        now = time.monotonic()
        self._ready.extend(call for when, call in self._later if when <= now)
        self._later = [(when, call) for when, call in self._later if when > now]
        return self._ready.popleft() if self._ready else next(planned, None)

    def _retry_later(self, call: Call[_Key], attempts: int, lost: bool) -> None:
        """Retry a call that has failed `attempts` times."""
        self._later.append((time.monotonic() + pause(attempts, lost), call))

    def _planned(self, files: Iterable[File]) -> Iterator[Call[_Key]]:
        planner = self.kind.planner(self.task, self.seconds)
        for planned in planner.calls(files, lambda: self.engine.at_once(self.needs)):
            group, first = planned.items, planned.items[0]
            memory = planned.memory or self.needs.memory
            needs = replace(self.needs, memory=-(-memory // _STEP) * _STEP)
            if isinstance(first, File):
                yield self._of_batch(_Batch(CompressedFiles(group), needs))  # type: ignore[arg-type]
                continue
            cut = _SplitFile(first.file, needs, group, len(group))  # type: ignore[arg-type]
            for part in group:
                yield self._of_piece(_Piece(cut, part))  # type: ignore[arg-type]

    def _of_batch(self, batch: _Batch) -> Call[_Key]:
        more = f" and {len(batch.files) - 1} more" if len(batch.files) > 1 else ""
        name = f"{self.task.operation} {escaped(next(iter(batch.files)).source.name)}{more}"
        return Call(batch, name, self.kind.process_files, (batch.files, self._shared), batch.needs)

    def _of_piece(self, piece: _Piece) -> Call[_Key]:
        cut, name = piece.split_file, escaped(piece.split_file.file.source.name)
        if piece.part is None:
            return Call(piece, f"join {name}", self.kind.join, (cut.file, len(cut.parts), self._shared), cut.needs)
        title = f"{self.task.operation} {name}, part {piece.part.number + 1} of {len(cut.parts)}"
        return Call(piece, title, self.kind.part, (piece.part, self._shared), cut.needs)

    def _ended(self, key: _Key, result: Any, error: BaseException | None) -> Iterator[FileResult]:
        lost = isinstance(error, Lost)
        if error is not None:
            self.lost += lost
            reason = f"its worker was lost, {ATTEMPTS} times" if lost else type(error).__name__
            files = _files(key)
            again = lost or len(files) > 1  # one of several files has raised it
            result = [FileResult(file, error=f"{reason}: {first_line(error)}", retryable=again) for file in files]
        if isinstance(key, _Piece):
            yield from self._piece_ended(key, result if isinstance(result, FileResult) else result[0], lost)
            return
        for outcome in result:
            if outcome.error and outcome.retryable and key.attempts < ATTEMPTS:
                file = _now(outcome.file) if error is None else outcome.file
                call = self._of_batch(_Batch([file], key.needs, key.attempts + 1))
                self._retry_later(call, key.attempts, error is not None)
            else:
                yield self._recorded(outcome, key.attempts)

    def _piece_ended(self, piece: _Piece, result: FileResult, lost: bool) -> Iterator[FileResult]:
        cut = piece.split_file
        if cut.waiting < 0:
            return  # the file has failed
        cut.attempts = max(cut.attempts, piece.attempts, cut.joins)
        if result.error and result.retryable and piece.part is None and cut.joins < ATTEMPTS:
            cut.waiting = len(cut.parts)  # parts may be missing; existing ones are not made again
            for part in cut.parts:
                self._retry_later(self._of_piece(_Piece(cut, part)), cut.joins, lost)
        elif result.error and result.retryable and piece.part and piece.attempts < ATTEMPTS:
            self._retry_later(self._of_piece(replace(piece, attempts=piece.attempts + 1)), piece.attempts, lost)
        elif result.error or piece.part is None:
            cut.waiting = -1
            yield self._recorded(result, cut.attempts, cut.reported)
        else:
            cut.waiting -= 1
            self._report_progress(cut)
            if cut.waiting == 0:
                cut.joins += 1
                self._ready.append(self._of_piece(_Piece(cut, None)))

    def _report_progress(self, split_file: _SplitFile) -> None:
        """Report the progress of a file in parts, including their joining. Parts that are repeated are not reported
        twice.
        """
        size = split_file.file.size * (len(split_file.parts) - split_file.waiting) // (len(split_file.parts) + 1)
        if size > split_file.reported:
            self.progress(size - split_file.reported)
            split_file.reported = size

    def _recorded(self, result: FileResult, attempts: int, reported: int = 0) -> FileResult:
        self.files += 1
        self.failures += bool(result.error)
        self.progress(result.file.size - reported)
        if self.manifest:
            self.manifest.note(record_of(result, self.task.operation, attempts))
        return result


def pause(attempts: int, lost: bool) -> float:
    """Return the seconds before a retry. `lost` says that the worker was lost."""
    return 0.0 if lost else PAUSE * 2 ** (attempts - 1)


def record_of(result: FileResult, operation: str, attempts: int = 1) -> Record:
    """Return the record of a result."""
    file = result.file
    source: dict[str, Any] = {
        "source": str(file.source),
        "size": file.size,
        "stamp": file.stamp,
        "version": file.version,
    }
    if result.error:
        return Record(**source, attempts=attempts, error=result.error)
    written = 0 if file.target is None else result.coded if operation in (COMPRESS, PACK) else result.raw
    output = {"output": str(file.target or ""), "output_size": written, "checksum": result.checksum}
    return Record(**source, **output, attempts=attempts)  # type: ignore[arg-type]


def _files(key: _Key) -> Sequence[File]:
    return key.files if isinstance(key, _Batch) else [key.split_file.file]


def _now(file: File) -> File:
    """Return a source in its current state."""
    try:
        status = file.source.stat()
    except OSError:
        return file
    return replace(file, size=status.st_size, stamp=work.stamp_of(status), version=work.version_of(file.source))


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return escaped((str(error).strip() or type(error).__name__).splitlines()[0])
