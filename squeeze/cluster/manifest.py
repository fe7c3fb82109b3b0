"""The manifest of a run over many files: lines of JSON that record the result of each file.

So the next run resumes, and a later check can prove that everything is there. Each session begins with a line
{"manifest": 1, "session": ..., "operation": ..., "options": ..., "sources": [...]}, followed by records. A session that
finished all its files ends with {"complete": true, "files": ...}, their number. All sessions have the same sources:
those that the user named. A last line that a crash has truncated is dropped.
"""

import fcntl
import json
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from xxhash import xxh3_128_digest

from squeeze.errors import FormatError, SqueezeError, escaped
from squeeze.system.documents import MAX_LINE, check, parse
from squeeze.system.limits import Limits
from squeeze.system.moving import errors_about
from squeeze.system.storage import local_path

__all__ = ["Manifest", "ManifestContent", "Record", "is_of_sources", "read_manifest", "read_options", "read_records"]

_FORMAT = 1
_SESSION = 4  # bytes of its name
_HEAD = {"manifest": int, "session": str, "operation": str, "options": {...: object}, "sources?": [str]}
_RECORD = {
    **{"source": str, "size": int, "stamp": str, "output?": str, "output_size?": int, "checksum?": str},
    **{"attempts?": int, "error?": str, "version?": str},
}
_END = {"complete": bool, "files": int}


@dataclass(frozen=True)
class Record:
    """The result of one source.

    Attributes:
        source: The path or URL.
        stamp: A text that changes when the source does.
        output: The output, if there is one.
        checksum: The XXH3-64 of the raw bytes, as `squeeze list` shows it.
        attempts: How often the source was tried.
        error: The error, if there is no output.
        version: The store's name of the source's version (an ETag, a generation), if it has one.
    """

    source: str
    size: int
    stamp: str
    output: str = ""
    output_size: int = 0
    checksum: str = ""
    attempts: int = 1
    error: str = ""
    version: str = ""


class Manifest:
    """A file of records that grows while a run works. It is created when the run begins its work.

    Attributes:
        session: The mark of temporary files of this run.
        earlier: The marks of earlier runs.
        was_complete: Whether the last of them finished all files.
    """

    def __init__(self, path: Path, operation: str, options: dict[str, Any], sources: Iterable[str] = ()):
        """Open the manifest of a run.

        Args:
            path: The file.
            operation: The operation.
            options: Its options, fit for JSON.
            sources: The sources that the user named, in any order.

        Raises:
            SqueezeError: The file is not a manifest, is of another task or other sources, or another process writes to
                it.
        """
        self.path, self.session, self.earlier = local_path(path), secrets.token_hex(_SESSION), set[str]()
        self.was_complete = False
        self._head: dict[str, Any] = {"operation": operation, "options": json.loads(json.dumps(options, default=str))}
        if sources := sorted(set(sources)):
            self._head["sources"] = sources
        self._finished: dict[int, None] = {}  # hashes, since there may be millions
        self._file: TextIO | None = None
        self._start_size: int | None = None  # bytes of the file before this run
        if self.path.exists():
            self._open(0)
            try:
                self._read()
            except BaseException:
                self.close()
                raise
        elif not self.path.parent.is_dir():
            raise SqueezeError(f"{path}: the folder {self.path.parent} does not exist; make it first")

    def _open(self, flags: int) -> None:
        with errors_about(self.path):
            opened = os.open(self.path, os.O_RDWR | os.O_APPEND | flags, 0o666)
            self._file = os.fdopen(opened, "r+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise self._busy_error() from None

    def _busy_error(self) -> SqueezeError:
        return SqueezeError(f"{self.path}: another process writes to it; wait for its end")

    def _read(self) -> None:
        end = 0
        for line, after in _lines(self.path):
            self.was_complete = "complete" in line
            if "manifest" in line:
                self._check(line)
                self.earlier.add(line["session"])
            elif "source" in line and not line.get("error"):
                self._finished[_key(Record(**line))] = None
            end = after
        if end < self.path.stat().st_size:
            os.truncate(self.path, end)

    def _check(self, head: dict[str, Any]) -> None:
        """Raise SqueezeError if a session is of another task or other sources."""
        other = [name for name, value in self._head.items() if head.get(name, value) != value]
        if other:
            what = "over other files" if other == ["sources"] else "with other options"
            raise SqueezeError(f"{self.path}: is of a run {what}: delete it, or name another with `manifest`")

    def begin(self) -> None:
        """Record that a run begins, once. Raise SqueezeError if another process has begun one meanwhile."""
        if self._start_size is not None:
            return
        if self._file is None:
            try:
                self._open(os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                raise self._busy_error() from None
        self._start_size = self.path.stat().st_size
        self._write({"manifest": _FORMAT, "session": self.session, **self._head})

    def is_done(self, source: str, stamp: str, output: str, output_size: int) -> bool:
        """Return whether a record says that this output was made from the source in its current state."""
        return hash((source, stamp, output, output_size)) in self._finished

    def note(self, record: Record) -> None:
        """Append a record."""
        self.begin()
        if not record.error:
            self._finished[_key(record)] = None
        self._write(vars(record))

    def complete(self, files: int) -> None:
        """Record that all `files` files of this run are done."""
        if self._file is None and not files:
            return
        self.begin()
        self._write({"complete": True, "files": files})
        assert self._file
        os.fsync(self._file.fileno())

    def withdraw(self) -> None:
        """Remove a session in which nothing was done."""
        if self._start_size is not None:
            os.truncate(self.path, self._start_size)
            if not self._start_size:
                self.path.unlink()

    def close(self) -> None:
        if self._file:
            self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        assert self._file
        with errors_about(self.path):
            self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
            self._file.flush()


@dataclass(frozen=True)
class ManifestContent:
    """The content of a manifest.

    Attributes:
        sources: The sources of the run, if recorded.
        records: The latest record of each source, read lazily.
        done: The number of sources with an output, without shards themselves.
        files: The number of files when the last run finished all of them, or None.
    """

    operation: str
    sources: list[str]
    records: Iterator[Record]
    done: int
    files: int | None


def read_manifest(path: Path, limits: Limits | None = None) -> ManifestContent:
    """Read a manifest. Only the digest of each source is held in memory.

    Raises:
        SqueezeError: The file is not a manifest.
        LimitError: A line takes more memory than `limits` allow.
    """
    digests, done = bytearray(), bytearray()
    head: dict[str, Any] = {}
    files = None
    for line, _ in _lines(path, limits):
        files = line["files"] if "complete" in line else None
        if "manifest" in line:
            head = line
        elif "source" in line:
            digests += xxh3_128_digest(line["source"].encode(errors="surrogatepass"))
            done.append(not line.get("error") and line.get("output") != line["source"])
    if not head:
        raise _damaged(path, "it is empty")
    latest = _latest(np.frombuffer(digests, np.uint64).reshape(-1, 2))
    lines = (line for line, _ in _lines(path, limits) if "source" in line)
    latest_records = (Record(**line) for line, kept in zip(lines, latest, strict=False) if kept)
    count = int((latest & np.frombuffer(done, bool)).sum())
    return ManifestContent(head["operation"], head.get("sources", []), latest_records, count, files)


def is_of_sources(path: Path, sources: Iterable[str]) -> bool:
    """Return whether a manifest is of these sources, names no sources, or does not exist. Raise SqueezeError if
    invalid.
    """
    head: dict[str, Any] = next((line for line, _ in _lines(path)), {}) if path.exists() else {}
    wanted = sorted(set(sources))
    return bool(head.get("sources", wanted) == wanted)


def read_records(path: Path) -> Iterator[Record]:
    """Yield all records in the order in which they were written."""
    return (Record(**line) for line, _ in _lines(path) if "source" in line)


def read_options(path: Path) -> dict[str, Any]:
    """Return the options of the run from the first line."""
    return next((dict(line.get("options") or {}) for line, _ in _lines(path)), {})


def _latest(sources: np.ndarray) -> np.ndarray:
    """Return which records are the latest of their source, bool. `sources` has the digests of all, [records, 2]."""
    order = np.lexsort(sources.T)  # a stable sort: records of one source keep the order of their lines
    follows = (sources[order[1:]] == sources[order[:-1]]).all(axis=1)
    latest = np.ones(len(sources), bool)
    latest[order[:-1][follows]] = False
    return latest


def _damaged(path: Path, why: object) -> SqueezeError:
    return SqueezeError(f"{escaped(str(path))}: is not a manifest of a run, or is damaged ({why}): delete it")


def _key(record: Record) -> int:
    return hash((record.source, record.stamp, record.output, record.output_size))


def _lines(path: Path, limits: Limits | None = None) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield each line and where it ends, without a last line that a crash has truncated."""
    with path.open("rb") as file:
        end, number = 0, 0
        while text := file.readline(MAX_LINE + 1):
            number += 1
            try:
                line = parse(text, limits or Limits(), most=MAX_LINE)
            except FormatError as error:
                if number > 1 and not file.read(1):
                    return
                raise _damaged(path, f"line {number}: {error}") from None
            if not text.endswith(b"\n"):
                if number > 1:
                    return
                raise _damaged(path, f"line {number} is cut off")
            if number == 1 and isinstance(line, dict) and line.get("manifest", _FORMAT) != _FORMAT:
                raise SqueezeError(f"{escaped(str(path))}: is a manifest of a version that this squeeze does not know")
            try:
                _check(line, number == 1)
            except FormatError as error:
                raise _damaged(path, f"line {number}: {error}") from None
            end += len(text)
            yield line, end


def _check(line: Any, first: bool) -> None:
    """Raise FormatError for a line that no run writes."""
    is_table = isinstance(line, dict)
    if first or (is_table and "manifest" in line):
        check(line, _HEAD)
    else:
        check(line, _END if is_table and "complete" in line else _RECORD)
