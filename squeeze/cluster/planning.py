"""Calls of a size that pays: small files together, large ones in parts, so that each takes some tens of seconds.

The last ones get shorter, so that all workers end at about the same time (guided self-scheduling: Polychronopoulos
and Kuck 1987).
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from squeeze.cluster.files import COMPRESS, File, Part, Task
from squeeze.codecs.stream import container, levels
from squeeze.codecs.stream.index import Stream, read_index
from squeeze.errors import FormatError

__all__ = ["Planner"]

_MOST_FILES = 500  # of a call: what is lost with a worker is done again
_FILE_SECONDS = 0.01  # of opening, writing and syncing one
_RATIO = 4  # raw bytes that a coded one is taken for
_AHEAD = 4096  # files that are listed before they are planned, at most
_CALLS_AHEAD = 20  # and so many calls for each that runs at the same time
_CALLS = 2  # into which what is left is cut for each that runs at the same time
_LEAST = 1 / 30  # of the time of a call, when it is one of the last


class Planner:
    """Cuts what is to be done into calls of about so many seconds on one slow processor."""

    def __init__(self, task: Task, seconds: float):
        self._task, self._seconds = task, seconds

    def calls(
        self, files: Iterable[File], at_once: Callable[[], float] = lambda: 1.0
    ) -> Iterator[list[File] | list[Part]]:
        """Groups of small files, and the parts of each large one, as the files come. Some are listed ahead, so that of
        the last ones the longest begin first, and calls get shorter. So many calls run at the same time."""
        ahead: deque[tuple[File, float]] = deque()
        held = 0.0  # seconds of what is listed ahead
        for file, cost in self._costs(files):
            if cost > 2 * self._seconds and (parts := self._parts(file)):
                yield parts
                continue
            ahead.append((file, cost))
            held += cost
            while len(ahead) > _AHEAD or held > _CALLS_AHEAD * at_once() * self._seconds:
                batch, taken = _taken(ahead, self._seconds)
                held -= taken
                yield batch
        least = self._seconds * _LEAST
        ahead = deque(sorted(ahead, key=lambda one: -one[1] if one[1] > least else 0.0))
        while ahead:
            share = max(held / (_CALLS * at_once()), least)
            batch, taken = _taken(ahead, min(share, self._seconds))
            held -= taken
            yield batch

    def _costs(self, files: Iterable[File]) -> Iterator[tuple[File, float]]:
        """Files with the seconds that each takes. By which level they are coded, is told by one of some."""
        level, since, count = 0, 0.0, 0
        for file in files:
            if not count or since > self._seconds or count == _MOST_FILES:
                level, since, count = self._level(file), 0.0, 0
            cost = file.size * self._seconds_a_byte(level) + _FILE_SECONDS
            since, count = since + cost, count + 1
            yield file, cost

    def _level(self, file: File) -> int:
        """By which files are coded, told by one of a batch."""
        if self._task.operation == COMPRESS:
            return int(self._task.options["level"])
        try:
            with file.source.open("rb") as source:
                header = container.read_header(source)
            number = header.fields.get("level") if header else None
        except (OSError, FormatError):
            return levels.DEFAULT
        return number if number in levels.LEVELS else levels.DEFAULT

    def _seconds_a_byte(self, level: int) -> float:
        """Of a source."""
        if self._task.operation == COMPRESS:
            return levels.estimate_seconds(level, 1, 1, self._task.options["verify"])
        return levels.estimate_seconds(level, _RATIO, 1, False)

    def _parts(self, file: File) -> list[Part]:
        """Of a large file; none where it is better left whole."""
        if self._task.operation == COMPRESS:
            return self._raw_parts(file)
        try:
            with file.source.open("rb") as source:
                return self._coded_parts(file, read_index(source))
        except (OSError, FormatError):
            return []  # a worker finds out, and says

    def _raw_parts(self, file: File) -> list[Part]:
        """Whole blocks, but for the last."""
        block = self._task.options["block_size"] or levels.DEFAULT_BLOCK
        most = self._seconds / self._seconds_a_byte(int(self._task.options["level"]))
        length = max(round(most / block), 1) * block
        if file.size < 2 * length:
            return []
        starts = range(0, file.size, length)
        return [Part(file, number, begin, min(length, file.size - begin)) for number, begin in enumerate(starts)]

    def _coded_parts(self, file: File, streams: list[Stream]) -> list[Part]:
        """Whole blocks, too."""
        most = self._seconds / (self._seconds_a_byte(self._level(file)) / _RATIO)
        starts, length = [0], 0
        for block in (block for stream in streams for block in stream.blocks):
            if length and length + block.raw_length > most:
                starts.append(block.raw_offset)
                length = 0
            length += block.raw_length
        ends = [*starts[1:], sum(stream.raw_size for stream in streams)]
        spans = enumerate(zip(starts, ends, strict=True))
        return [Part(file, number, begin, end - begin) for number, (begin, end) in spans] if len(starts) > 1 else []


def _taken(ahead: deque[tuple[File, float]], seconds: float) -> tuple[list[File], float]:
    """The first files, which take about so many seconds, and how many: at least one file."""
    batch: list[File] = []
    taken = 0.0
    while ahead and len(batch) < _MOST_FILES and (not batch or taken + ahead[0][1] <= seconds):
        file, cost = ahead.popleft()
        batch.append(file)
        taken += cost
    return batch, taken
