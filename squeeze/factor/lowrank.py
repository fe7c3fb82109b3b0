"""Low rank by truncated singular value decomposition, of the matrix itself or whitened by its inputs.

The loss is E ||S_o^T (W - W') x||^2 over inputs x with H = E[x x^T]. With S_i S_i^T = H the best W' of rank R is S_o^-T
P S_o^T W. P projects on the first R left singular vectors of S_o^T W S_i (Eckart and Young). S_i = S_o = I is the plain
SVD; S_i a Cholesky factor of H is SVD-LLM's whitening (Wang et al. 2024, arXiv 2403.07378). S_o S_o^T = E[g g^T], for
gradients g of the loss with respect to outputs, makes it the second-order rise of the model's loss under K-FAC's
approximation (Martens and Grosse 2015, arXiv 1503.05671).

Factors are stored without their gauge freedom: R pivot rows of the matrix, and the other rows as coefficients of them.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Self

import torch

from squeeze.engine.method import HessianError, Result
from squeeze.factor.form import Form, packed_mask
from squeeze.factor.matrices import PIFA, Dense, LowRank
from squeeze.factor.methods import TruncationOptions

__all__ = ["SVD", "Identity", "Truncation", "WhitenedSVD", "maxvol", "pivoted", "rank_for", "root"]

_ESCALATIONS = 6  # times that the damping is multiplied by 10


def root(moments: torch.Tensor, damping: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return S and S^-1, float64 [N, N], with S S^T = moments + damping * mean diagonal.

    S is the Cholesky factor; if that fails with any damping, the symmetric square root with its pseudo-inverse. Raises
    HessianError if entries are not finite.
    """
    matrix = moments.double()
    if not torch.isfinite(matrix).all():
        raise HessianError("the statistics are not finite")
    mean = matrix.diagonal().mean().clamp(min=1e-30)
    for escalation in range(_ESCALATIONS):
        damped = matrix.clone()
        damped.diagonal().add_(damping * 10**escalation * mean)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not failed:
            eye = torch.eye(len(lower), dtype=lower.dtype, device=lower.device)
            return lower, torch.linalg.solve_triangular(lower, eye, upper=False)
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    values = values.clamp(min=0).sqrt()
    inverse = torch.where(values > 1e-6 * values[-1], 1 / values, 0)
    return (vectors * values) @ vectors.T, (vectors * inverse) @ vectors.T


def rank_for(outputs: int, inputs: int, keep: float, pivoted: bool = True) -> int:
    """Return the largest rank, at least 1, that stores at most `keep` O I values.

    Args:
        outputs: O.
        inputs: I.
        keep: share of the matrix's values.
        pivoted: whether factors are stored without their gauge freedom.
    """
    total = outputs + inputs
    if not pivoted:
        return max(1, min(int(keep * outputs * inputs / total), outputs, inputs))
    if keep >= 1:
        return min(outputs, inputs)
    rank = (total - math.sqrt(total * total - 4 * keep * outputs * inputs)) / 2
    return max(1, min(int(rank + 1e-9), outputs, inputs))


@dataclass(frozen=True, kw_only=True)
class Truncation(TruncationOptions):
    """The base of methods of low rank.

    Attributes:
        rank: instead of a share to keep.
        pivoted: store factors without their gauge freedom (factor/matrices.py), else as two factors.
        damping: share of the mean diagonal that is added to moments.
        outputs: moments of gradients with respect to outputs, float32 [O, O]; None to weight all outputs alike.
    """

    name: ClassVar[str]
    needs_hessian: ClassVar[bool] = True

    outputs: torch.Tensor | None = field(default=None, repr=False, compare=False)

    def compress(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> Result[Form]:
        """Factorise a weight; see Method.compress."""
        rank = self.rank or rank_for(weight.shape[0], weight.shape[1], self.keep, self.pivoted)
        rank = min(rank, *weight.shape)
        left, right = self.factors(weight, hessian, rank)
        if not self.pivoted:
            return Result(LowRank(left.to(weight.dtype), right.to(weight.dtype)))
        if rank == weight.shape[0]:
            return Result(Dense(weight.contiguous()))
        return Result(pivoted(left, right, weight.dtype))

    def factors(
        self, weight: torch.Tensor, hessian: torch.Tensor | None, rank: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the factors, float64 [O, R] and [R, I], whose product is the best matrix of that rank."""
        wide = weight.double()
        inner, inner_inverse = self._inputs(weight, hessian)
        outer, outer_inverse = self._outputs(weight)
        scaled = _right(wide, inner) if outer is None else outer.T @ _right(wide, inner)
        if weight.shape[0] <= weight.shape[1]:
            vectors = torch.linalg.eigh(scaled @ scaled.T).eigenvectors.flip(1)[:, :rank]
            left = vectors if outer_inverse is None else outer_inverse.T @ vectors
            return left, vectors.T @ (wide if outer is None else outer.T @ wide)
        vectors = torch.linalg.eigh(scaled.T @ scaled).eigenvectors.flip(1)[:, :rank]
        return _right(wide, inner) @ vectors, _right(vectors.T, inner_inverse)

    def _inputs(
        self, weight: torch.Tensor, hessian: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return S_i and its inverse, or None for the identity."""
        assert hessian is not None
        return root(hessian, self.damping)

    def _outputs(self, weight: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        return (None, None) if self.outputs is None else root(self.outputs.to(weight.device), self.output_damping)

    def fallback(self) -> "SVD":
        return SVD(keep=self.keep, rank=self.rank, pivoted=self.pivoted)


def _right(matrix: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    return matrix if scale is None else matrix @ scale


@dataclass(frozen=True, kw_only=True)
class SVD(Truncation):
    """Approximate the weights of a matrix W (out, in) by low rank, without calibration: the fallback of the other
    methods.

    Truncated singular value decomposition (Eckart and Young 1936).
    """

    name: ClassVar[str] = "svd"
    needs_hessian: ClassVar[bool] = False

    def _inputs(
        self, weight: torch.Tensor, hessian: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        return None, None


@dataclass(frozen=True, kw_only=True)
class WhitenedSVD(Truncation):
    """Approximate the outputs of a matrix by low rank: far less error on real inputs than the plain SVD.

    compress takes W (out, in) and H (in, in). SVD-LLM, Wang et al. 2024, arXiv 2403.07378. With `outputs` errors are
    weighted by what they do to the model's loss.
    """

    name: ClassVar[str] = "whitened"

    @classmethod
    def textbook(cls, keep: float) -> Self:
        """Return SVD-LLM as published: two factors, output error only."""
        return cls(keep=keep, pivoted=False)


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Keep a matrix W (out, in) whole. In a calibrated run it still compensates for earlier errors.

    With `pivoted` it is stored in the form of low rank with every row as a pivot, for experts, which must share one
    form.
    """

    name: ClassVar[str] = "dense"
    needs_hessian: ClassVar[bool] = False

    pivoted: bool = False

    def compress(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> Result[Form]:
        """Store a weight; see Method.compress."""
        if not self.pivoted:
            return Result(Dense(weight.contiguous()))
        every = torch.ones(len(weight), dtype=torch.bool, device=weight.device)
        return Result(PIFA(packed_mask(every), weight.new_zeros(0, len(weight)), weight.contiguous()))

    def fallback(self) -> "Identity":
        return self


_SWAPS = 200
_LARGEST = 1.02  # largest coefficient that is not worth a swap


def maxvol(left: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose rows of a matrix [O, R] whose determinant is nearly the largest.

    Pivots of an LU decomposition, then swaps of the worst row (Goreinov et al. 2010). With these rows as a basis, all
    other rows are combinations with small coefficients.

    Returns:
        The row numbers, int64 [R], and the matrix in terms of those rows [O, R].
    """
    outputs, rank = left.shape
    _, swaps, _ = torch.linalg.lu_factor_ex(left)
    order = torch.arange(outputs)
    for i, j in enumerate((swaps - 1).tolist()):
        order[[i, j]] = order[[j, i]]
    rows = order[:rank].to(left.device)
    terms, failed = torch.linalg.solve_ex(left[rows].T, left.T)
    if failed:  # of a lower rank: any rows that span it will do
        return rows, (torch.linalg.pinv(left[rows].T) @ left.T).T
    terms = terms.T
    for _ in range(_SWAPS):
        largest = int(terms.abs().argmax())
        i, j = divmod(largest, rank)
        if terms[i, j].abs() <= _LARGEST:
            break
        change = terms[i].clone()
        change[j] -= 1
        terms = terms - torch.outer(terms[:, j] / terms[i, j], change)
        rows[j] = i
    return rows, terms


def pivoted(left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> PIFA:
    """Return left [O, R] times right [R, I] as PIFA. The base is rounded to `dtype` first, and the coefficients
    fitted to it."""
    rows, _ = maxvol(left)
    rows = rows.sort().values
    mask = torch.zeros(len(left), dtype=torch.bool, device=left.device)
    mask[rows] = True
    base = (left[mask] @ right).to(dtype)
    other_rows = left[~mask] @ right
    return PIFA(packed_mask(mask), fitted(other_rows, base.double()).to(dtype), base)


def fitted(rows: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """Return the coefficients [N, R] with which a base [R, I] is nearest to rows [N, I]."""
    coefficients: torch.Tensor = torch.linalg.lstsq(base.T, rows.T).solution.T
    return coefficients
