"""Block low-rank matrices: Monarch (blocks of low rank) and BLAST (blocks that share their bases).

Both are fitted to whitened weights. Monarch is fitted block by block, with an SVD of each block (projection of Dao et
al. 2022, arXiv 2204.00595), then its outer factor to the whole of H. BLAST is fitted by alternating least squares from
the SVD, no step of which raises the error (Lee et al. 2024, arXiv 2410.21262, use preconditioned gradient descent).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import gcd
from typing import ClassVar, Self

import torch

from squeeze.engine.method import Result
from squeeze.factor.form import Form
from squeeze.factor.lowrank import WhitenedSVD, root
from squeeze.factor.methods import BLASTOptions, BlockOptions
from squeeze.factor.networks import Blast, MonarchMatrix

__all__ = ["BLAST", "Monarch"]

_DAMPING = 1e-4


@dataclass(frozen=True, kw_only=True)
class _Blocks(BlockOptions, ABC):
    """A method that divides a matrix into `blocks` x `blocks` blocks, or the nearest smaller number that divides
    both sides."""

    name: ClassVar[str]
    needs_hessian: ClassVar[bool] = True

    @abstractmethod
    def fit(self, weight: torch.Tensor, hessian: torch.Tensor, blocks: int) -> Form:
        """Fit the form to a float64 weight [O, I], in float64.

        Args:
            weight: W [O, I].
            hessian: H [I, I], positive definite.
            blocks: along each side.
        """

    def compress(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> Result[Form]:
        """Factorise a weight; see Method.compress."""
        if hessian is None:
            hessian = torch.eye(weight.shape[1], device=weight.device)
        divisor = gcd(*weight.shape)
        blocks = max(n for n in range(1, self.blocks + 1) if divisor % n == 0)
        moments = hessian.double().clone()
        moments.diagonal().add_(_DAMPING * moments.diagonal().mean() + 1e-30)
        fitted = self.fit(weight.double(), moments, blocks)
        tensors = {name: tensor.to(weight.dtype).contiguous() for name, tensor in fitted.tensors().items()}
        return Result(type(fitted).of(tensors))

    def fallback(self) -> Self:
        """Return the method itself, so that experts without statistics are stored in the same form as the others."""
        return self


@dataclass(frozen=True, kw_only=True)
class Monarch(_Blocks):
    """Factorise a matrix into blocks of one rank: two block-diagonal products with a permutation between them.

    compress takes W (out, in) and H (in, in). Dao et al. 2022, arXiv 2204.00595.
    """

    name: ClassVar[str] = "monarch"

    def fit(self, weight: torch.Tensor, hessian: torch.Tensor, blocks: int) -> Form:
        (outputs, inputs), n = weight.shape, blocks
        o, i = outputs // n, inputs // n
        rank = max(1, min(int(self.keep * outputs * inputs / (n * (outputs + inputs))), o, i))
        inner = weight.new_zeros(n, n, rank, i)  # [Q, P, R, i]
        for q in range(n):
            span = slice(q * i, (q + 1) * i)
            scale, inverse = root(hessian[span, span], _DAMPING)
            for p, rows in enumerate(weight[:, span].split(o)):
                _, _, right = torch.linalg.svd(rows @ scale, full_matrices=False)
                inner[q, p] = right[:rank] @ inverse
        outer = []
        for p, rows in enumerate(weight.split(o)):
            reduced = torch.block_diag(*inner[:, p])  # [Q R, I]
            outer.append(_solve(rows @ hessian @ reduced.T, reduced @ hessian @ reduced.T))
        return MonarchMatrix(torch.stack(outer), inner.reshape(n, n * rank, i))


def _solve(right: torch.Tensor, gram: torch.Tensor) -> torch.Tensor:
    """Return X with X gram = right, for a symmetric and possibly singular gram."""
    scale = 1e-10 * gram.diagonal().mean() + 1e-30
    solution: torch.Tensor = torch.linalg.solve(gram + scale * torch.eye(len(gram)).to(gram), right.T).T
    return solution


@dataclass(frozen=True, kw_only=True)
class BLAST(BLASTOptions, _Blocks):
    """Factorise a matrix into blocks that share bases along rows and columns, with a diagonal scaling for each block.

    compress takes W (out, in) and H (in, in). Lee et al. 2024, arXiv 2410.21262. `rounds` are those of alternating
    least squares.
    """

    name: ClassVar[str] = "blast"

    def fit(self, weight: torch.Tensor, hessian: torch.Tensor, blocks: int) -> Form:
        (outputs, inputs), n = weight.shape, blocks
        rank = int(self.keep * outputs * inputs / (outputs + inputs + n * n))
        rank = max(1, min(rank, outputs, inputs))
        left, right = WhitenedSVD().factors(weight, hessian, rank)
        bases, shared = left.reshape(n, outputs // n, rank), right.reshape(rank, n, inputs // n).transpose(0, 1).clone()
        mix = weight.new_ones(n, n, rank)
        for _ in range(self.rounds):
            bases = _fit_bases(weight, hessian, mix, shared)
            mix = _fit_mix(weight, hessian, bases, shared)
            shared = _fit_inputs(weight, hessian, bases, mix, shared)
        return Blast(_fit_bases(weight, hessian, mix, shared), mix, shared)


def _fit_bases(weight: torch.Tensor, hessian: torch.Tensor, mix: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
    bases = []
    for rows, scales in zip(weight.split(len(weight) // len(mix)), mix, strict=True):
        reduced = torch.cat([scale[:, None] * block for scale, block in zip(scales, shared, strict=True)], 1)  # [R, I]
        bases.append(_solve(rows @ hessian @ reduced.T, reduced @ hessian @ reduced.T))
    return torch.stack(bases)


def _fit_mix(weight: torch.Tensor, hessian: torch.Tensor, bases: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
    (q, r, _), scales = shared.shape, []
    spread = torch.block_diag(*shared)  # [Q R, I]
    inner = spread @ hessian @ spread.T
    for rows, base in zip(weight.split(bases.shape[1]), bases, strict=True):
        gram = inner * (base.T @ base).repeat(q, q)
        target = ((base.T @ rows @ hessian).repeat(q, 1) * spread).sum(1)
        scales.append(_solve(target[None], gram)[0].view(q, r))
    return torch.stack(scales)


def _fit_inputs(
    weight: torch.Tensor, hessian: torch.Tensor, bases: torch.Tensor, mix: torch.Tensor, shared: torch.Tensor
) -> torch.Tensor:
    shared, i = shared.clone(), shared.shape[2]
    for q in range(len(shared)):
        span = slice(q * i, (q + 1) * i)
        scaled = (bases * mix[:, q, None]).flatten(0, 1)  # [O, R]
        product = torch.einsum("por,pqr,qri->poqi", bases, mix, shared).reshape(weight.shape)
        product[:, span] = 0
        missing = scaled.T @ (weight - product) @ hessian[:, span]
        shared[q] = _solve(_solve(missing.T, scaled.T @ scaled).T, hessian[span, span])
    return shared
