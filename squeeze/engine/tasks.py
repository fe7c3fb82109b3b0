"""Scores of models on tasks with right answers, as in reports."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from squeeze.errors import QualityError

__all__ = ["TaskScore", "accuracies", "check_drops"]

_ACCURACIES = ("acc_norm", "acc", "exact_match")  # the first one that a task has is its accuracy


@dataclass(frozen=True)
class TaskScore:
    """One metric of a task or group of tasks.

    Attributes:
        task: its name.
        metric: lm-eval's name, followed by a comma and the filter of answers if there is one.
        value: over `examples` examples.
        stderr: standard error of the value, or None.
        base, base_stderr: the same of the original model.
        drop_stderr: standard error of base - value, paired by example, if the metric is a mean over examples.
    """

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
        """The difference base - value, in points (hundredths)."""
        return None if self.base is None else 100 * (self.base - self.value)

    def with_base(self, base: "TaskScore", differences: list[float]) -> "TaskScore":
        """Return the score with the original's, and the paired differences base - value of each example."""
        count, mean = len(differences), sum(differences) / max(len(differences), 1)
        squares = sum((one - mean) ** 2 for one in differences)
        stderr = math.sqrt(squares / (count - 1) / count) if count > 1 else None
        return replace(self, base=base.value, base_stderr=base.stderr, drop_stderr=stderr)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """Return a score from its JSON document."""
        return cls(**{name: value for name, value in document.items() if name != "drop"})

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "drop": self.drop}

    def __str__(self) -> str:
        before = f", before {_with_error(self.base, self.base_stderr)}" if self.base is not None else ""
        paired = (
            f" (the difference {_with_error(self.base - self.value, self.drop_stderr)})"
            if self.base is not None
            else ""
        )
        return f"{self.metric} {_with_error(self.value, self.stderr)}{before}{paired}"


def _with_error(value: float, stderr: float | None) -> str:
    return f"{value:.4f}" + ("" if stderr is None else f" ± {stderr:.4f}")


def accuracies(scores: Iterable[TaskScore]) -> list[TaskScore]:
    """Return the accuracy of each task that has one."""
    scores, by_task = list(scores), dict[str, TaskScore]()
    for name in _ACCURACIES:
        for score in scores:
            if score.metric.partition(",")[0] == name:
                by_task.setdefault(score.task, score)
    return list(by_task.values())


def check_drops(target: str, scores: Iterable[TaskScore], limit: float) -> None:
    """Raise QualityError if the accuracy of a task fell by more than `limit` points, or no task measures one."""
    accuracy_scores = accuracies(scores)
    if not accuracy_scores:
        raise QualityError(f"{target}: no task measures {', '.join(_ACCURACIES[:-1])} or {_ACCURACIES[-1]}")
    for score in accuracy_scores:
        if score.drop is not None and not score.drop <= limit:
            raise QualityError(
                f"{target}: {score.metric} of {score.task} fell by {score.drop:.2f} points: the limit is {limit:g}"
            )
