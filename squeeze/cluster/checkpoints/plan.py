"""Planning calls on the files of a checkpoint: small files together, large ones by their tensors."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from squeeze.cluster.operations import HASH, PACK, UNPACK, File, Part, Task
from squeeze.cluster.planning import Planned
from squeeze.packing.bundling import planned
from squeeze.packing.container import PackedFile
from squeeze.packing.sources import Source

__all__ = ["Planner", "memory_of"]

_MOST = 1 << 28  # bytes of a part, which a worker keeps on its disk for a while
_MOST_FILES = 500
# Raw bytes per second of one slow processor: coding with verification, and decoding.
_CODED = {"fast": 3e8, "runtime": 1.5e8, "archive": 1.5e6}
_DECODED = {"fast": 5e8, "runtime": 3e8, "archive": 2e6}
_LEAST_MEMORY = 600_000_000  # bytes of a worker that codes in parts
_ARCHIVED = 6  # bytes of memory per byte of a tensor that is coded whole

Heads = Mapping[Path, Source | PackedFile]  # headers of the files that have tensors


class Planner:
    """A planner of calls of about `seconds` seconds. `heads` are the files that have tensors."""

    def __init__(self, heads: Heads, task: Task, seconds: float):
        self._heads, self._task, self._seconds = heads, task, seconds

    def calls(self, files: Iterable[File], at_once: object = None) -> Iterator[Planned]:
        """Yield the parts of each file that has several, and groups of all other files."""
        batch: list[File] = []
        size = 0
        for file in files:
            if self._task.operation in (PACK, UNPACK) and len(parts := self._parts(file)) > 1:
                yield Planned(parts)
                continue
            if batch and (size + file.size > _MOST or len(batch) == _MOST_FILES):
                yield Planned(batch)
                batch, size = [], 0
            batch.append(file)
            size += file.size
        if batch:
            yield Planned(batch)

    def _parts(self, file: File) -> list[Part]:
        """Return parts of whole tensors. One more part is the hash of the source if that is needed."""
        head = self._heads.get(file.source)
        if head is None:
            return []
        if isinstance(head, PackedFile):
            speed, sizes = _DECODED[head.description.level], [record.size for record in head.description.records]
            counts = [1] * len(sizes)
        else:
            speed = _CODED[self._task.options["level"]]
            sizes = [tensor.size for tensor in head.file.tensors]
            counts = planned(head.file)
        starts = _starts(sizes, counts, min(_MOST, int(self._seconds * speed)))
        if len(starts) < 2:
            return []
        ends = [*starts[1:], len(sizes)]
        parts = [Part(file, number, starts[number], ends[number] - starts[number]) for number in range(len(starts))]
        return parts if isinstance(head, PackedFile) else [*parts, Part(file, len(parts), HASH, 0)]


def _starts(sizes: Sequence[int], counts: Sequence[int], most: int) -> list[int]:
    """Return the first tensors of parts of at most `most` bytes.

    Args:
        sizes: bytes of the tensors.
        counts: how many tensors that follow each other stay together.
        most: bytes of a part, if it has several of these.
    """
    starts, total = [0], 0
    for end, count in zip(accumulate(counts), counts, strict=True):
        size = sum(sizes[end - count : end])
        if total and total + size > most:
            starts.append(end - count)
            total = 0
        total += size
    return starts


def memory_of(heads: Heads, level: str | None) -> int:
    """Estimate the most bytes of memory of a call."""
    largest = 0
    for head in heads.values():
        if isinstance(head, PackedFile):
            pairs = zip(head.file.tensors, head.description.records, strict=True)
            archived = head.description.level == "archive"
            largest = max([largest, *(record.memory(tensor.size) for tensor, record in pairs if archived)])
        elif level == "archive":
            largest = max([largest, *(_ARCHIVED * tensor.size for tensor in head.file.tensors)])
    return _LEAST_MEMORY + largest
