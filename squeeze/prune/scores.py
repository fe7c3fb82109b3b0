"""Methods that keep the weights with the highest scores, unchanged: by magnitude, and by magnitude times that of the
input (Wanda).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from squeeze.checkpoint.sparse import SparseTensor, mask_of
from squeeze.engine.method import Result
from squeeze.prune.method import PruningMethod, checked_hessian

__all__ = ["Magnitude", "Wanda"]


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


@dataclass(frozen=True, kw_only=True)
class Wanda(PruningMethod):
    """Prune a matrix with one pass over calibration text and no change of weights: far less error than by magnitude.

    compress takes W (out, in) and H (in, in). The score of a weight is |w| times the root mean square of its input;
    without N:M weights compete within their row. Sun et al. 2023, arXiv 2306.11695.
    """

    name: ClassVar[str] = "wanda"
    needs_hessian: ClassVar[bool] = True

    def compress(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> Result[SparseTensor]:
        hessian = checked_hessian(weight, hessian)
        scores = weight.float().abs() * hessian.diagonal().float().clamp(min=0).sqrt()
        return Result(self.sparse(weight, mask_of(self.pattern, scores, by_row=True), weight.dtype))

    def fallback(self) -> Magnitude:
        return Magnitude(pattern=self.pattern)
