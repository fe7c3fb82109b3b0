"""Methods that choose the experts of a layer that stay. The others are left out, or merged into these (merging.py).

REAP (Lasby et al. 2025, arXiv 2510.13999) keeps the experts with the largest mean of router weight times norm of the
output, over the tokens that the router sends them. The baseline keeps those with the largest weights.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

from squeeze.engine.experts import Experts
from squeeze.options import check
from squeeze.prune.experts.methods import FittedOptions, NormOptions
from squeeze.prune.experts.statistics import LayerStatistics

__all__ = ["REAP", "ExpertMethod", "Norm", "largest"]

Parts = dict[tuple[int, str], torch.Tensor]  # matrices and biases by the number of a kept expert and their name in it


class ExpertMethod(ABC):
    """A method that chooses experts.

    Attributes:
        name: of the method.
        needs_tokens: whether it needs statistics.
        compared_tokens: tokens of each expert on which experts are compared with each other.
        rounds, ridge: of the fit of kept experts (fitting.py).
    """

    name: ClassVar[str]
    needs_tokens: ClassVar[bool] = True
    compared_tokens = 0
    rounds = 0
    ridge = 0.0

    @abstractmethod
    def scores(self, experts: Experts, sums: LayerStatistics | None) -> torch.Tensor:
        """Return how much each expert matters [E]."""

    def merged(self, experts: Experts, kept: list[int], sums: LayerStatistics | None) -> Parts:
        """Return new matrices of kept experts, by the expert's place among them. Other matrices stay."""
        return {}


@dataclass(frozen=True, kw_only=True)
class REAP(FittedOptions, ExpertMethod):
    """Experts by router weight times norm of the output."""

    name: ClassVar[str] = "reap"

    def __post_init__(self) -> None:
        check(self)

    @property
    def rounds(self) -> int:  # type: ignore[override]
        return self.fit

    @property
    def ridge(self) -> float:  # type: ignore[override]
        return self.damping

    def scores(self, experts: Experts, sums: LayerStatistics | None) -> torch.Tensor:
        assert sums is not None
        return sums.saliency


@dataclass(frozen=True, kw_only=True)
class Norm(NormOptions, ExpertMethod):
    """Experts by the norm of their weights."""

    name: ClassVar[str] = "norm"
    needs_tokens: ClassVar[bool] = False

    def scores(self, experts: Experts, sums: LayerStatistics | None) -> torch.Tensor:
        squares = [
            sum(parameter.double().square().sum() for parameter in expert.parameters()) for expert in experts.experts
        ]
        return torch.stack([torch.as_tensor(square) for square in squares]).sqrt().cpu()


def largest(scores: torch.Tensor, count: int, groups: int = 1) -> list[int]:
    """Return the numbers of the experts with the largest scores in ascending order, as many in each group.

    Args:
        scores: of each expert [E]; the groups are of E / groups experts that follow each other.
        count: experts to keep, divisible by the number of groups.
        groups: number of groups.
    """
    size = len(scores) // groups
    chosen = scores.view(groups, size).topk(count // groups, dim=1).indices
    return sorted((chosen + size * torch.arange(groups)[:, None]).flatten().tolist())
