"""SparseGPT: prunes one group of columns after the other, and changes later columns to compensate for the error.

With the Cholesky factor U of the inverse Hessian, weight w of column j costs w^2 / U_jj^2 (Frantar and Alistarh 2023,
arXiv 2301.00774). The mask of M columns is chosen from the weights as changed up to there. The error of pruning, and of
rounding in the same pass, is spread over later columns as in GPTQ. refine.py improves the result.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from squeeze.checkpoint.sparse import SparseTensor, mask_of, violations
from squeeze.engine.method import Result
from squeeze.errors import SqueezeError
from squeeze.prune.method import PruningMethod, checked_hessian
from squeeze.prune.methods import SparseGPTOptions
from squeeze.prune.refine import can_refine, reconstruct, refine
from squeeze.prune.scores import Magnitude
from squeeze.quant import refine as codes_refinement
from squeeze.quant.gptq import GPTQ, inverse_factor
from squeeze.quant.grid import QParams

__all__ = ["SparseGPT"]


@dataclass(frozen=True, kw_only=True)
class SparseGPT(SparseGPTOptions, PruningMethod):
    """Prune a matrix to 50 % or 2:4 with a small error of its outputs: kept weights compensate for those removed.

    compress takes W (out, in) and H (in, in). Frantar and Alistarh 2023, arXiv 2301.00774.

    Attributes:
        damping: share of the mean diagonal of H that is added to it.
        block_size: columns whose errors are spread to later columns at once; without N:M also those whose mask is
            chosen at once.
        refine: rounds over all N:M groups, each of which is given its best mask and weights.
        reconstruct: steps of layer-wise reconstruction after that.
        quantizer: the grid to which kept weights are rounded in the same pass.
        keep_zeros: the weight is pruned already; keep what is not 0.
        exact: compute in float64.
    """

    name: ClassVar[str] = "sparsegpt"
    needs_hessian: ClassVar[bool] = True

    quantizer: GPTQ | None = None

    @classmethod
    def textbook(cls, **options: object) -> "SparseGPT":
        """Return the algorithm of the paper: nothing after the sweep."""
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
                raise SqueezeError(f"expected a matrix that is pruned to {self.pattern}, to keep its zeros")
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
        """Return the sparse tensor of values and a mask [O, I], rounded if there is a grid."""
        if self.quantizer is None:
            return Result(self.sparse(pruned, mask, weight.dtype), notes)
        return Result(self._quantised(weight, pruned, hessian, upper, mask), notes)

    def sweep(self, weight: torch.Tensor, upper: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return values and mask [O, I] of a weight [O, I], from the factor of its inverse Hessian [I, I]."""
        values, mask, _ = self._sweep(weight, upper, None, None)
        return values, mask

    def _sweep(
        self, weight: torch.Tensor, upper: torch.Tensor, mask: torch.Tensor | None, params: QParams | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return values, mask and codes [O, I].

        Args:
            weight: [O, I].
            upper: factor of the inverse Hessian [I, I].
            mask: bool [O, I]; None to choose it during the sweep.
            params: of the quantiser's grid, or None.
        """
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
        """Round a matrix to the quantiser's grid, with the given mask or one chosen in the same pass.

        Args:
            weight: W [O, I].
            start: values to start from [O, I].
            hessian: H [I, I].
            upper: factor of the inverse Hessian [I, I].
            mask: bool [O, I], or None.
        """
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
    """Return a Hessian damped as in inverse_factor."""
    damped = hessian.clone()
    diagonal = damped.diagonal()
    diagonal[diagonal == 0] = 1
    diagonal.add_(damping * diagonal.mean())
    return damped


def _zero_codes(grid: GPTQ, params: QParams, shape: torch.Size) -> torch.Tensor:
    """Return the codes [O, I] of the weight 0."""
    size, quantizer = grid.effective_group_size(shape[1]), grid.as_quantizer()
    zeros = [torch.zeros((shape[0], min(size, shape[1] - at))) for at in range(0, shape[1], size)]
    return torch.cat([quantizer.encode(part, params[:, g]) for g, part in enumerate(zeros)], 1)
