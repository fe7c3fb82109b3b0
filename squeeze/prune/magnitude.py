"""Magnitude pruning: the largest weights stay unchanged, whatever the inputs."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from squeeze.checkpoint.sparse import SparseTensor, mask_of
from squeeze.engine.method import Result
from squeeze.prune.method import PruningMethod

__all__ = ["Magnitude"]


@dataclass(frozen=True, kw_only=True)
class Magnitude(PruningMethod):
    """Prune a matrix W (out, in) without calibration: the baseline, and the fallback of methods that need statistics.

    The score of a weight is its magnitude (Han et al. 2015, arXiv 1506.02626).
    """

    name: ClassVar[str] = "magnitude"
    needs_hessian: ClassVar[bool] = False

    def compress(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> Result[SparseTensor]:
        mask = mask_of(self.pattern, weight.float().abs())
        return Result(self.sparse(weight, mask, weight.dtype))

    def fallback(self) -> "Magnitude":
        return self
