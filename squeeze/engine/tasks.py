"""What models score on tasks with right answers, as reports have it."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from squeeze.errors import QualityError

__all__ = ["TaskScore", "accuracies", "check_drops"]

_ACCURACIES = ("acc_norm", "acc", "exact_match")  # the first that a task has is what it is judged by


@dataclass(frozen=True)
class TaskScore:
    """One metric of a task or group of tasks. metric: lm-eval's name, with the filter of answers behind a comma if
    there is one. value: over so many examples; stderr: its standard error, None where there is none. base, base_stderr:
    the same of the model that it was made from. drop_stderr: the standard error of base - value, example by example,
    where the metric is a mean over examples."""

    task: str
    metric: str
    value: float
    examples: int
    stderr: float | None = None
    base: float | None = None
    base_stderr: float | None = None
    drop_stderr: float | None = None

    @property
    def drop(self) -> float | None:
        """Of base - value, in points: hundredths."""
        return None if self.base is None else 100 * (self.base - self.value)

    def beside(self, base: "TaskScore", differences: list[float]) -> "TaskScore":
        """With the other model's score; differences: base - value of each example, or none."""
        count, mean = len(differences), sum(differences) / max(len(differences), 1)
        squares = sum((one - mean) ** 2 for one in differences)
        stderr = math.sqrt(squares / (count - 1) / count) if count > 1 else None
        return replace(self, base=base.value, base_stderr=base.stderr, drop_stderr=stderr)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """The inverse of as_json."""
        return cls(**{name: value for name, value in document.items() if name != "drop"})

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "drop": self.drop}

    def __str__(self) -> str:
        before = f", before {_with(self.base, self.base_stderr)}" if self.base is not None else ""
        paired = f" (the difference {_with(self.base - self.value, self.drop_stderr)})" if self.base is not None else ""
        return f"{self.metric} {_with(self.value, self.stderr)}{before}{paired}"


def _with(value: float, stderr: float | None) -> str:
    return f"{value:.4f}" + ("" if stderr is None else f" ± {stderr:.4f}")


def accuracies(scores: Iterable[TaskScore]) -> list[TaskScore]:
    """Of each task the score that it is judged by, where it has one."""
    scores, found = list(scores), dict[str, TaskScore]()
    for name in _ACCURACIES:
        for score in scores:
            if score.metric.partition(",")[0] == name:
                found.setdefault(score.task, score)
    return list(found.values())


def check_drops(target: str, scores: Iterable[TaskScore], most: float) -> None:
    """Raises QualityError where the accuracy of a task is more than so many points below the base's, or none of them
    measures one."""
    judged = accuracies(scores)
    if not judged:
        raise QualityError(f"{target}: none of the tasks measures {', '.join(_ACCURACIES[:-1])} or {_ACCURACIES[-1]}")
    for score in judged:
        if score.drop is not None and not score.drop <= most:
            raise QualityError(
                f"{target}: {score.metric} of {score.task} fell by {score.drop:.2f} points, and {most:g} were allowed"
            )
