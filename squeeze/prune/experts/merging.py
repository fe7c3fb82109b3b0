"""Merging of the experts that are left out into kept ones.

This follows REAM (Jha et al. 2026, arXiv 2604.04356). The kept experts are those of REAP. Each of the others joins
the kept expert whose outputs are most like its own on its own tokens. The weights of a group are averaged, each by its
share of the group's router weight times output. Before that, hidden units are put in the order of the kept expert's.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]
from torch import nn

from squeeze.engine.experts import Experts
from squeeze.prune.experts.choosing import REAP, Parts
from squeeze.prune.experts.methods import MergeOptions
from squeeze.prune.experts.statistics import LayerStatistics

__all__ = ["Merge", "aligned"]


@dataclass(frozen=True, kw_only=True)
class Merge(MergeOptions, REAP):
    """Experts by REAP, with the others merged into them."""

    name: ClassVar[str] = "merge"

    @property
    def compared_tokens(self) -> int:  # type: ignore[override]
        return self.pairs

    def merged(self, experts: Experts, kept: list[int], sums: LayerStatistics | None) -> Parts:
        assert sums is not None
        groups = self.groups(kept, sums)
        parts: Parts = {}
        for place, (first, *others) in enumerate(groups):
            shares = sums.activation[[first, *others]].clamp(min=1e-12)
            shares = (shares / shares.sum()).float()
            own = dict(experts.experts[first].named_parameters())
            total = {name: shares[0] * value for name, value in own.items()}
            for share, other in zip(shares[1:], others, strict=True):
                for name, value in aligned(experts.experts[other], experts.experts[first]).items():
                    total[name] = total[name] + share * value
            parts |= {(place, name): value for name, value in total.items() if others}
        return parts

    def groups(self, kept: list[int], sums: LayerStatistics) -> list[list[int]]:
        """Return each kept expert with those that are merged into it."""
        groups = [[number] for number in kept]
        likeness = sums.likeness[:, kept] / sums.compared.clamp(min=1)[:, None]
        for number in range(len(sums.count)):
            if number not in kept and sums.count[number]:
                groups[int(likeness[number].argmax())].append(number)
        return groups


def aligned(expert: nn.Module, target: nn.Module) -> dict[str, torch.Tensor]:
    """Return an expert's parameters with its hidden units in the order of those of `target` that are most alike."""
    order = _order(_units(target), _units(expert))
    found = {}
    for name, value in expert.named_parameters():
        if name.startswith("down_proj"):
            found[name] = value[:, order] if value.ndim == 2 else value
        else:
            found[name] = value[order]
    return found


def _units(expert: nn.Module) -> torch.Tensor:
    """Return the normalised weights into and out of each hidden unit [I, 3 H]."""
    gate, up, down = (expert.get_parameter(f"{leaf}_proj.weight") for leaf in ("gate", "up", "down"))
    matrices = [gate, up, down.T]
    return torch.cat([nn.functional.normalize(matrix, dim=1) for matrix in matrices], 1)


def _order(target: torch.Tensor, units: torch.Tensor) -> torch.Tensor:
    """Return for each row of `target` another row of `units`, so that the sum of their products is the largest."""
    return torch.from_numpy(linear_sum_assignment((target @ units.T).cpu().numpy(), maximize=True)[1])
