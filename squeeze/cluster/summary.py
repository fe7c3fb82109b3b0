"""A summary of a run over many files, with one row per kind of file."""

import time
from dataclasses import dataclass, field
from typing import Any, Protocol

from squeeze.cluster.operations import FileResult

__all__ = ["Summary"]

_TOLD = 100  # failures that are listed by name
_KINDS = 50  # endings of names; further ones are counted as one


class Counts(Protocol):
    """The counts of a run: files and failed files, calls and calls whose worker was lost."""

    files: int
    failures: int
    calls: int
    lost: int


@dataclass
class Summary:
    """The summary of a run. `endings` has the number of files and their raw and coded bytes by the ending of names."""

    operation: str
    raw: int = 0
    coded: int = 0
    endings: dict[str, list[int]] = field(default_factory=dict)
    failures: list[tuple[str, str]] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        """The duration of the run so far."""
        return time.perf_counter() - self.started

    def add(self, result: FileResult) -> None:
        """Add the result of a file."""
        if result.error:
            if len(self.failures) < _TOLD:
                self.failures.append((str(result.file.source), result.error))
            return
        self.raw, self.coded = self.raw + result.raw, self.coded + result.coded
        ending = result.file.source.name.removesuffix(".sqz").rpartition(".")[2]
        if ending not in self.endings and len(self.endings) == _KINDS:
            ending = "other"
        sums = self.endings.setdefault(ending, [0, 0, 0])
        for place, more in enumerate((1, result.raw, result.coded)):
            sums[place] += more

    def as_json(self, counts: Counts, processors: float) -> dict[str, Any]:
        """Return the summary for `--json`."""
        return {
            "command": self.operation,
            "files": counts.files,
            "failed": counts.failures,
            "raw_size": self.raw,
            "coded_size": self.coded,
            "seconds": round(self.seconds, 3),
            "processors": processors,
            "calls": counts.calls,
            "lost_calls": counts.lost,
            "endings": self.endings,
            "failures": self.failures,
        }
