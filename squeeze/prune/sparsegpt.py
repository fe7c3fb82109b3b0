"""SparseGPT: prunes one group of columns after the other and lets the columns that follow make up for the error.

Frantar and Alistarh 2023 (arXiv 2301.00774): with the Cholesky factor U of the inverse Hessian, weight w of column j
costs w^2 / U_jj^2; the mask of M columns is chosen from the weights as they have become, and what goes, or is rounded
by a quantiser on the way, is spread over the columns behind it as in GPTQ. What refine.py and recover.py add comes
after that.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from squeeze.checkpoint.sparse import SparseTensor, mask_of, violations
from squeeze.engine.method import Result
from squeeze.errors import SqueezeError
from squeeze.prune.magnitude import Magnitude
from squeeze.prune.method import PruningMethod, checked_hessian
from squeeze.prune.methods import SparseGPTOptions
from squeeze.prune.refine import can_refine, reconstruct, refine
from squeeze.quant import refine as codes_refinement
from squeeze.quant.gptq import GPTQ, inverse_factor
from squeeze.quant.grid import QParams

__all__ = ["SparseGPT"]


@dataclass(frozen=True, kw_only=True)
class SparseGPT(SparseGPTOptions, PruningMethod):
    """damping: share of the Hessian's mean diagonal that is added to it. block_size: columns whose errors are spread
    to the columns behind the block at once, and whose mask is chosen at once without N:M. refine: rounds over all
    groups of N:M, each of which is given its best mask and weights; reconstruct: steps of layer-wise reconstruction
    after that. quantizer: the grid on which the weights kept lie, rounded in the same pass. keep_zeros: the weight is
    pruned already, and what is not 0 is kept. exact: all in float64."""

    name: ClassVar[str] = "sparsegpt"
    needs_hessian: ClassVar[bool] = True

    quantizer: GPTQ | None = None

    @classmethod
    def textbook(cls, **options: object) -> "SparseGPT":
        """The paper's own algorithm: nothing after the sweep."""
        return cls(**{"refine": 0, "reconstruct": 0, "exact": True, **options})  # type: ignore[arg-type]

    @property
    def quantises(self) -> bool:
        return self.quantizer is not None

    @property
    def corrects(self) -> bool:
        return not self.keep_zeros

    def fallback(self) -> Magnitude:
        return Magnitude(pattern=self.pattern)

    def compress(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> Result[SparseTensor]:
        hessian = checked_hessian(weight, hessian)
        values = weight.to(torch.float64 if self.exact else torch.float32)
        hessian = hessian.to(values.dtype)
        dead = hessian.diagonal() == 0
        notes: tuple[str, ...] = (f"{int(dead.sum())} inputs are always 0",) if dead.any() else ()
        values = values.masked_fill(dead, 0)
        upper, damping = inverse_factor(hessian, self.damping)
        if damping > self.damping:
            notes += (f"damping raised to {damping:g}",)
        if self.keep_zeros:
            if violations(self.pattern, values):
                raise SqueezeError(f"zeros to keep: a matrix has weights beyond {self.pattern}")
            return self._stored(weight, values, values != 0, hessian, upper, notes)
        if self.quantizer is not None and not (self.refine or self.reconstruct):
            return Result(self._quantised(weight, values, hessian, upper, None), notes)
        pruned, mask = self.sweep(values, upper)
        damped = _damped(hessian, damping)
        if self.refine and can_refine(self.pattern):
            pruned, mask = refine(values, damped, pruned, self.pattern, self.refine)
        if self.reconstruct:
            pruned = reconstruct(values, mask, damped, pruned, self.reconstruct)
        return self._stored(weight, pruned, mask, hessian, upper, notes)

    def _stored(
        self,
        weight: torch.Tensor,
        pruned: torch.Tensor,
        mask: torch.Tensor,
        hessian: torch.Tensor,
        upper: torch.Tensor,
        notes: tuple[str, ...],
    ) -> Result[SparseTensor]:
        """What is stored of values and a mask [O, I], rounded if there is a grid."""
        if self.quantizer is None:
            return Result(self.sparse(pruned, mask, weight.dtype), notes)
        return Result(self._quantised(weight, pruned, hessian, upper, mask), notes)

    def sweep(self, weight: torch.Tensor, upper: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Values and mask [O, I] of a weight [O, I], by the factor of its inverse Hessian [I, I]."""
        values, mask, _ = self._sweep(weight, upper, None, None)
        return values, mask

    def _sweep(
        self, weight: torch.Tensor, upper: torch.Tensor, mask: torch.Tensor | None, params: QParams | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Values, mask and codes [O, I]. mask: chosen on the way where it is None. params: of the quantiser's grid."""
        work, inputs = weight.clone(), weight.shape[1]
        values, codes = torch.zeros_like(work), torch.zeros(work.shape, dtype=torch.uint8, device=work.device)
        chosen = torch.zeros(work.shape, dtype=torch.bool, device=work.device) if mask is None else mask
        step = self.pattern.step(self.block_size)
        size = max(self.block_size // step, 1) * step
        for first in range(0, inputs, size):
            last = min(first + size, inputs)
            errors = torch.empty((len(work), last - first), dtype=work.dtype, device=work.device)
            for j in range(first, last):
                if mask is None and (j - first) % step == 0:
                    end = min(j + step, last)
                    scores = (work[:, j:end] / upper.diagonal()[j:end]).square()
                    chosen[:, j:end] = mask_of(self.pattern, scores)
                value = work[:, j]
                if params is not None and self.quantizer is not None:
                    mine = params[:, j // self.quantizer.effective_group_size(inputs)]
                    code = self.quantizer.as_quantizer().encode(value[:, None], mine)
                    codes[:, j], value = (
                        code[:, 0],
                        self.quantizer.as_quantizer().decode(code, mine)[:, 0].to(work.dtype),
                    )
                values[:, j] = value.masked_fill(~chosen[:, j], 0)
                error = (work[:, j] - values[:, j]) / upper[j, j]
                work[:, j + 1 : last].addr_(error, upper[j, j + 1 : last], alpha=-1)
                errors[:, j - first] = error
            work[:, last:].addmm_(errors, upper[first:last, last:], alpha=-1)
        return values, chosen, codes

    def _quantised(
        self,
        weight: torch.Tensor,
        start: torch.Tensor,
        hessian: torch.Tensor,
        upper: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> SparseTensor:
        """The weight on the quantiser's grid, with the mask given, from `start`, or one chosen in the same pass."""
        grid = self.quantizer
        assert grid is not None
        dtype = grid.stored_as(weight)
        hessian = hessian.float()
        allowed = mask_of(self.pattern, start.square() * hessian.diagonal()) if mask is None else mask
        importance = hessian.diagonal() if grid.weighted else None
        params = grid.fit(start.float().masked_fill(~allowed, 0), importance, dtype)
        _, mask, codes = self._sweep(start, upper, mask, params)
        codes = torch.where(mask, codes, _zero_codes(grid, params, codes.shape))
        for _ in range(grid.refine):
            codes, params = codes_refinement.refine(grid, weight.float(), hessian, codes, params, dtype, mask)
        return SparseTensor(grid.assemble(codes, params, dtype), mask, self.pattern)


def _damped(hessian: torch.Tensor, damping: float) -> torch.Tensor:
    """As inverse_factor damps it."""
    damped = hessian.clone()
    diagonal = damped.diagonal()
    diagonal[diagonal == 0] = 1
    diagonal.add_(damping * diagonal.mean())
    return damped


def _zero_codes(grid: GPTQ, params: QParams, shape: torch.Size) -> torch.Tensor:
    """Codes [O, I] of the weight 0."""
    size, quantizer = grid.effective_group_size(shape[1]), grid.as_quantizer()
    zeros = [torch.zeros((shape[0], min(size, shape[1] - at))) for at in range(0, shape[1], size)]
    return torch.cat([quantizer.encode(part, params[:, g]) for g, part in enumerate(zeros)], 1)
