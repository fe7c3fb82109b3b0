"""Joint low rank of matrices that read the same inputs: one basis of rows for all of them.

The matrices are stacked, [O1 + O2 + .., I], and the stack gets the whitened SVD and the pivots of a single matrix
(lowrank.py). Each matrix has some of the stack's R pivot rows; its other rows are coefficients of all R. Queries and
keys use similar directions of their inputs, so the stack needs fewer values than both on their own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from squeeze.engine.method import Result
from squeeze.factor.form import Form, packed_mask
from squeeze.factor.lowrank import SVD, WhitenedSVD, fitted, maxvol, rank_for
from squeeze.factor.matrices import Shared
from squeeze.factor.methods import RankOptions

__all__ = ["SharedSVD"]


@dataclass(frozen=True, kw_only=True)
class SharedSVD(RankOptions):
    """Approximate matrices with the same inputs by low rank with a shared basis: fewer values at the same error.

    compress_together takes several W (out, in) and their common H (in, in).

    Attributes:
        rank: instead of a share to keep.
        outputs: moments of gradients with respect to the outputs of all matrices, float32 [sum of O, sum of O]; None to
            weight errors relative to each matrix's own mean squared output.
    """

    name: ClassVar[str] = "shared"
    needs_hessian: ClassVar[bool] = True

    outputs: torch.Tensor | None = field(default=None, repr=False, compare=False)

    def _unshared_method(self) -> WhitenedSVD:
        return WhitenedSVD(keep=self.keep, rank=self.rank)

    def compress(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> Result[Form]:
        """Factorise a matrix that shares its inputs with no other; see Method.compress."""
        return self._unshared_method().compress(weight, hessian)

    def fallback(self) -> SVD:
        return self._unshared_method().fallback()

    def compress_together(self, weights: Mapping[str, torch.Tensor], hessian: torch.Tensor) -> dict[str, Result[Any]]:
        """Factorise matrices together; see JointMethod. The first one's module stores the basis."""
        stack = torch.cat([weight.double() for weight in weights.values()])
        rank = min(self.rank or rank_for(stack.shape[0], stack.shape[1], self.keep), *stack.shape)
        left, right = self.method(weights, hessian).factors(stack, hessian, rank)
        rows, _ = maxvol(left)
        mask = torch.zeros(len(stack), dtype=torch.bool, device=stack.device)
        mask[rows] = True
        dtype = next(iter(weights.values())).dtype
        base = (left[mask] @ right).to(dtype)
        owner = torch.tensor(list(next(iter(weights)).rpartition(".")[2].encode()), dtype=torch.uint8)
        results: dict[str, Result[Any]] = {}
        first = start = 0
        for name, weight in weights.items():
            own_rows, span = mask[first : first + len(weight)], slice(first, first + len(weight))
            coefficients = fitted((left[span] @ right)[~own_rows], base.double()).to(dtype)
            row = torch.tensor([start], dtype=torch.int32)
            results[name] = Result(
                Shared(packed_mask(own_rows), coefficients, row, base, owner.clone() if results else None)
            )
            first, start = first + len(weight), start + int(own_rows.sum())
        return results

    def method(self, weights: Mapping[str, torch.Tensor], hessian: torch.Tensor) -> WhitenedSVD:
        """Return the method of low rank for the stack."""
        if self.outputs is not None:
            return WhitenedSVD(outputs=self.outputs)
        scales = []
        for weight in weights.values():
            wide = weight.double()
            energy = ((wide @ hessian.double()) * wide).sum().clamp(min=1e-30)
            scales.append(torch.full((len(weight),), 1 / float(energy), device=weight.device))
        return WhitenedSVD(outputs=torch.diag(torch.cat(scales)), output_damping=1e-9)
