"""Planning calls of a useful size: small files together, large ones in parts, so that each takes some tens of seconds.

The last calls are shorter, so that all workers end at about the same time (guided self-scheduling: Polychronopoulos and
Kuck 1987).
"""

import json
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

from squeeze.cluster.engine import PROCESS
from squeeze.cluster.operations import COMPRESS, HASH, File, Part, Task
from squeeze.codecs.stream import estimates, levels
from squeeze.codecs.stream.index import Stream, read_index
from squeeze.codecs.stream.resources import Resources, as_dictionary
from squeeze.errors import FormatError, SqueezeError
from squeeze.system.limits import Limits
from squeeze.system.remote_path import RemotePath
from squeeze.system.storage import remote

__all__ = ["CompressedFiles", "Planned", "Planner"]

_MOST_FILES = 500  # files of a call; what a lost worker has done is repeated
_FILE_SECONDS = 0.01  # seconds for opening, writing and syncing a file
_RATIO = 4  # assumed raw bytes per coded byte
_AHEAD = 4096  # the most files that are listed ahead
_CALLS_AHEAD = 20  # the most calls that are listed ahead, per concurrent call
_CALLS = 2  # calls that the remaining work is cut into, per concurrent call
_LEAST = 1 / 30  # the shortest of the last calls, as a share of the intended duration


@dataclass(frozen=True)
class Planned:
    """Files of one call, or all parts of one file, each of which is a call. `memory` is the bytes of a call, 0 if
    unknown.
    """

    items: list[File] | list[Part]
    memory: int = 0


class _Ahead(NamedTuple):
    """A listed file with the seconds that it takes and the bytes of memory, 0 if unknown."""

    file: File
    seconds: float
    memory: int


class Planner:
    """A planner of calls of about `seconds` seconds on one slow processor."""

    def __init__(self, task: Task, seconds: float):
        self._task, self._seconds = task, seconds

    def calls(self, files: Iterable[File], at_once: Callable[[], float] = lambda: 1.0) -> Iterator[Planned]:
        """Yield groups of small files and the parts of each large file, as the files come.

        Some files are listed ahead, so that the longest of the last files start first and calls get shorter.

        Args:
            files: The files.
            at_once: Returns the current number of concurrent calls.
        """
        ahead: deque[_Ahead] = deque()
        held = 0.0  # seconds of work listed ahead
        for one in self._costs(files):
            if one.seconds > 2 * self._seconds and (parts := self._parts(one.file)):
                yield Planned(parts, one.memory)
                continue
            ahead.append(one)
            held += one.seconds
            while len(ahead) > _AHEAD or held > _CALLS_AHEAD * at_once() * self._seconds:
                batch, taken = _take_batch(ahead, self._seconds)
                held -= taken
                yield batch
        least = self._seconds * _LEAST
        ahead = deque(sorted(ahead, key=lambda one: -one.seconds if one.seconds > least else 0.0))
        while ahead:
            share = max(held / (_CALLS * at_once()), least)
            batch, taken = _take_batch(ahead, min(share, self._seconds))
            held -= taken
            yield batch

    def _costs(self, files: Iterable[File]) -> Iterator[_Ahead]:
        """Yield files with their cost. One file of each batch tells the level that it was coded by."""
        level, memory, since, count = 0, 0, 0.0, 0
        for file in files:
            if not count or since > self._seconds or count == _MOST_FILES:
                (level, memory), since, count = self._level(file), 0.0, 0
            cost = file.size * self._seconds_a_byte(level) + _FILE_SECONDS
            since, count = since + cost, count + 1
            yield _Ahead(file, cost, memory)

    def _level(self, file: File) -> tuple[int, int]:
        """Return the level of a file and the bytes of memory for restoring it.

        The memory is 0 if the run compresses, since the run knows it, or if the file cannot be read, which a worker
        will report.
        """
        if self._task.operation == COMPRESS:
            return int(self._task.options["level"]), 0
        try:
            with file.source.open("rb") as source:
                number, memory = estimates.memory_to_restore(source, self._resources)
        except (OSError, SqueezeError):
            return levels.DEFAULT, 0
        return number or levels.DEFAULT, memory + PROCESS

    @cached_property
    def _resources(self) -> Resources:
        """The resources for restoring, whose memory is estimated without a GPU.

        Raises DictionaryError or LimitError.
        """
        options = self._task.options
        limits = options.get("limits") or Limits()
        dictionary = as_dictionary(options.get("dictionary"), limits)
        return Resources(options["threads"], options.get("model"), dictionary, limits, options.get("adapter"))

    def _seconds_a_byte(self, level: int) -> float:
        """Return the seconds per byte of a source at a level."""
        if self._task.operation == COMPRESS:
            return levels.estimate_seconds(level, 1, 1, self._task.options["verify"])
        return levels.estimate_seconds(level, _RATIO, 1, False)

    def _parts(self, file: File) -> list[Part]:
        """Return the parts of a large file, or an empty list if it is better left whole."""
        if self._task.operation == COMPRESS:
            return self._raw_parts(file)
        try:
            with file.source.open("rb") as source:
                return self._coded_parts(file, read_index(source))
        except (OSError, FormatError):
            return []  # a worker will report the error

    def _raw_parts(self, file: File) -> list[Part]:
        """Return parts of whole blocks. One more part, the checksums of the source, comes first."""
        block = self._task.options["block_size"] or levels.DEFAULT_BLOCK
        most = self._seconds / self._seconds_a_byte(int(self._task.options["level"]))
        length = max(round(most / block), 1) * block
        if file.size < 2 * length:
            return []
        starts = range(0, file.size, length)
        parts = [Part(file, number, begin, min(length, file.size - begin)) for number, begin in enumerate(starts)]
        return [Part(file, len(parts), HASH, length), *parts]

    def _coded_parts(self, file: File, streams: list[Stream]) -> list[Part]:
        """Return parts of whole blocks of a .sqz file."""
        most = self._seconds / (self._seconds_a_byte(self._level(file)[0]) / _RATIO)
        starts, length = [0], 0
        for block in (block for stream in streams for block in stream.blocks):
            if length and length + block.raw_length > most:
                starts.append(block.raw_offset)
                length = 0
            length += block.raw_length
        ends = [*starts[1:], sum(stream.raw_size for stream in streams)]
        spans = enumerate(zip(starts, ends, strict=True))
        return [Part(file, number, begin, end - begin) for number, (begin, end) in spans] if len(starts) > 1 else []


def _take_batch(ahead: deque[_Ahead], seconds: float) -> tuple[Planned, float]:
    """Take files of about `seconds` seconds, at least one, and return them with the seconds that they take."""
    batch: list[File] = []
    taken, memory = 0.0, 0
    while ahead and len(batch) < _MOST_FILES and (not batch or taken + ahead[0].seconds <= seconds):
        one = ahead.popleft()
        batch.append(one.file)
        taken, memory = taken + one.seconds, max(memory, one.memory)
    return Planned(batch, memory), taken


class CompressedFiles(Sequence[File]):
    """An immutable sequence of files in compressed form: a cluster of 1,000 processors has a million small ones in
    flight.
    """

    def __init__(self, items: Sequence[File]):
        rows = [
            (_encoded_path(one.source), one.size, one.stamp, _encoded_path(one.target), one.checksum, one.version)
            for one in items
        ]
        self._count, self._data = len(rows), zlib.compress(json.dumps(rows).encode(), 1)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]

    def __iter__(self) -> Iterator[File]:
        for source, size, stamp, target, *rest in json.loads(zlib.decompress(self._data)):
            yield File(_decoded_path(source), size, stamp, None if target is None else _decoded_path(target), *rest)


def _encoded_path(path: Path | None) -> Any:
    place = remote(path)
    return place.url_and_key if place else None if path is None else str(path)


def _decoded_path(encoded: Any) -> Path:
    return Path(encoded) if isinstance(encoded, str) else cast(Path, RemotePath(*encoded))
