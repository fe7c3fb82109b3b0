"""GPTQ: rounds one column of a matrix after the other, and changes later columns to compensate for the error.

U is the Cholesky factor of the inverse Hessian. The error of column j is spread over the columns after it in proportion
to row j of U (Frantar et al. 2022, arXiv 2210.17323). refine.py improves the result.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.engine.method import HessianError, Result
from squeeze.quant import columns, lattice, refine
from squeeze.quant.block_grid import BlockParams
from squeeze.quant.grid import QParams
from squeeze.quant.method import GridMethod
from squeeze.quant.methods import GPTQOptions
from squeeze.quant.rtn import RTN

__all__ = ["GPTQ"]

LARGE = 4096  # inputs above which float32 is tried first
_SMALL = 128  # size of a triangular matrix that is inverted in one step
_ESCALATIONS = 6  # times that the damping is multiplied by 10


@dataclass(frozen=True, kw_only=True)
class GPTQ(GPTQOptions, GridMethod):
    """Quantise a matrix with the least error of its outputs: rounding errors are compensated by the weights not yet
    rounded.

    compress takes W (out, in) and H (in, in), the mean of x x^T over inputs x. Frantar et al. 2022, arXiv 2210.17323.

    Attributes:
        damping: share of the mean diagonal of H that is added to it. More than the factor needs, so that codes fit the
            calibration tokens less closely.
        block_size: columns whose errors are spread to later columns at once.
        act_order: columns with the largest inputs first. Groups stay contiguous, so no g_idx is stored. With dynamic
            scales whole groups are ordered, and the columns in each.
        dynamic: choose the scales of a group when its first column is reached instead of before the sweep.
        weighted: clip ranges by squared error weighted with the diagonal of H.
        refine: rounds of refitting scales and re-rounding columns after the sweep.
        outliers: columns kept in the weight's own dtype, those with the largest inputs (QUIK, Ashkboos et al. 2023).
        exact: compute in float64.
    """

    name: ClassVar[str] = "gptq"
    needs_hessian: ClassVar[bool] = True

    @classmethod
    def textbook(cls, **options: object) -> "GPTQ":
        """Return the algorithm of the paper: dynamic scales from the whole range, no order, little damping, no
        refinement."""
        plain = {"clip": False, "act_order": False, "dynamic": True, "weighted": False, "refine": 0, "exact": True}
        return cls(**{"damping": 0.01, **plain, **options})  # type: ignore[arg-type]

    def apply(self, weight: torch.Tensor, hessian: torch.Tensor) -> QuantizedTensor:
        """Quantise W [O, I] of floats with H [I, I], the mean or sum of x x^T. Raises HessianError if H cannot be
        used."""
        return self.compress(weight, hessian).tensor

    def fallback(self) -> RTN:
        options = ("bits", "group_size", "symmetric", "grid", "clip", "scale_dtype", "activations")
        return RTN(**{name: getattr(self, name) for name in options})

    def compress(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> Result[QuantizedTensor]:
        if hessian is None or hessian.shape != (weight.shape[1], weight.shape[1]):
            raise HessianError(f"expected a Hessian of {weight.shape[1]} x {weight.shape[1]}, the inputs of the matrix")
        dtype, values = self.stored_as(weight), weight.detach().to(torch.float64 if self.exact else torch.float32)
        hessian = hessian.to(values.dtype)
        dead = hessian.diagonal() == 0
        notes: tuple[str, ...] = (f"{int(dead.sum())} inputs are always 0",) if dead.any() else ()
        values = values.masked_fill(dead, 0)
        outliers = hessian.diagonal().argsort(descending=True)[: self.outliers]
        order = self._order(hessian.diagonal(), outliers)
        upper, damping = inverse_factor(hessian, self.damping, order)
        if damping > self.damping:
            notes += (f"damping raised to {damping:g}",)
        importance = hessian.diagonal() if self.weighted else None
        params = self.fit(values.index_fill(1, outliers, 0), importance, dtype)
        codes, compensated = self._sweep(values, order, upper, params, dtype, len(outliers))
        del upper
        for _ in range(self.refine if len(values) and not len(outliers) else 0):
            codes, params = refine.refine(self, values, hessian, codes, params, dtype)
        tensor = self.assemble(codes, params, dtype)
        if len(outliers):
            tensor = with_outliers(tensor, outliers, compensated[:, outliers].to(weight.dtype))
        return Result(tensor, notes)

    def _order(self, diagonal: torch.Tensor, outliers: torch.Tensor) -> torch.Tensor:
        """Return the order in which columns are rounded; outliers come last and take up the remaining error."""
        inputs, quantizer = len(diagonal), self.as_quantizer()
        if isinstance(quantizer, lattice.LatticeGrid) and self.act_order:
            return lattice.point_order(diagonal, quantizer.dims)
        rank = torch.arange(inputs, device=diagonal.device, dtype=torch.float64)
        if self.act_order:
            rank = -diagonal.double()
        if self.act_order and self.dynamic:
            size = self.effective_group_size(inputs)
            group = torch.arange(inputs, device=diagonal.device) // size
            sums = torch.zeros(int(group[-1]) + 1, dtype=torch.float64, device=diagonal.device)
            sums = sums.index_add(0, group, diagonal.double())
            position = sums.argsort(descending=True, stable=True).argsort()[group]
            rank = position.double() - 0.5 * diagonal.double() / diagonal.max().clamp(min=1e-30)
        rank[outliers] = torch.inf
        return rank.argsort(stable=True)

    def _sweep(
        self,
        weight: torch.Tensor,
        order: torch.Tensor,
        upper: torch.Tensor,
        params: QParams,
        dtype: torch.dtype,
        outliers: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return codes [O, I], and the weights as they were when their column was rounded. Dynamic scales go into
        `params`."""
        quantizer, size = self.as_quantizer(), self.effective_group_size(weight.shape[1])
        if isinstance(quantizer, lattice.LatticeGrid):
            assert isinstance(params, BlockParams)
            return lattice.sweep(quantizer, weight, order, upper, params, self.block_size)
        if weight.device.type == "cpu" and not self.dynamic and (levels := quantizer.levels_of(params)):
            return columns.sweep(weight, upper, order, len(order) - outliers, self.block_size, size, levels)
        work = weight[:, order]
        groups = (order // size).tolist()
        codes = torch.zeros((len(order), len(work)), dtype=torch.uint8, device=work.device)
        refitted: set[int] = set()
        stop = len(order) - outliers
        for first in range(0, stop, self.block_size):
            last = min(first + self.block_size, stop)
            block = work[:, first:last].T.contiguous()  # [columns, O]: a column lies side by side
            errors = torch.zeros_like(block)
            for j in range(first, last):
                column = block[j - first]
                if self.dynamic and groups[j] not in refitted:
                    refitted.add(groups[j])
                    work[:, first:last] = block.T
                    places = (order // size == groups[j]).nonzero()[:, 0]
                    self._refit(params, groups[j], _up_to_date(work, errors, upper, places, first, j - first), dtype)
                mine = params[:, groups[j]]
                code = quantizer.encode(column[:, None], mine)
                error = errors[j - first]
                torch.div(column - quantizer.decode(code, mine)[:, 0], upper[j, j], out=error)
                block[j - first + 1 :].addr_(upper[j, j + 1 : last], error, alpha=-1)
                codes[j] = code[:, 0]
            work[:, first:last] = block.T
            work[:, last:].addmm_(errors.T, upper[first:last, last:], alpha=-1)
        inverse = order.argsort()
        return codes[inverse].T.contiguous(), work[:, inverse]

    def _refit(self, params: QParams, group: int, values: torch.Tensor, dtype: torch.dtype) -> None:
        """Fit the parameters of a group to its columns [O, N]."""
        fitted = self.as_quantizer().fit(values, None, dtype)
        params.scale[:, :, group] = fitted.scale
        if params.zero is not None and fitted.zero is not None:
            params.zero[:, group] = fitted.zero


def _up_to_date(
    work: torch.Tensor, errors: torch.Tensor, upper: torch.Tensor, places: torch.Tensor, first: int, done: int
) -> torch.Tensor:
    """Return the columns [O, N] at `places`, with the first `done` errors of the block at `first` taken into
    account."""
    values = work[:, places].clone()
    behind = places >= first + len(errors)
    if done and behind.any():
        values[:, behind] -= errors[:done].T @ upper[first : first + done][:, places[behind]]
    return values


def inverse_factor(
    hessian: torch.Tensor, damping: float, order: torch.Tensor | None = None
) -> tuple[torch.Tensor, float]:
    """Return the upper triangular U with U^T U = inverse of the damped Hessian, and the damping that was needed.

    Computed in float64, since float32 is unstable below 1 % of damping. A large Hessian with more damping is tried in
    float32 first, to save memory.

    Args:
        hessian: H [I, I].
        damping: share of the mean diagonal that is added to it.
        order: order of the inputs; None for their own.

    Raises:
        HessianError: H is not finite, or not positive definite with 10^6 times the damping.
    """
    if not torch.isfinite(hessian.diagonal()).all():
        raise HessianError("the Hessian is not finite")
    types = [torch.float64] * (_ESCALATIONS + 1)
    if len(hessian) > LARGE and damping >= 0.01:
        types.insert(0, torch.float32)
    order = torch.arange(len(hessian), device=hessian.device) if order is None else order
    share = damping
    for dtype in types:
        if (upper := _factor(hessian, order.flip(0), dtype, share)) is not None:
            return upper.to(hessian.dtype), share
        share = share if dtype == torch.float32 else 10 * max(share, 1e-5)
    raise HessianError(f"the Hessian is not positive definite, even with a damping of {share / 10:g}")


def _factor(hessian: torch.Tensor, backwards: torch.Tensor, dtype: torch.dtype, damping: float) -> torch.Tensor | None:
    """Return U in this dtype, or None if the factorisation fails.

    With inputs in reverse order the damped Hessian is L L^T; L^-1 with rows and columns reversed is an upper triangular
    factor of the inverse.
    """
    work = hessian[backwards[:, None], backwards].to(dtype)
    diagonal = work.diagonal()
    diagonal[diagonal == 0] = 1
    diagonal.add_(damping * diagonal.mean())
    work, failed = torch.linalg.cholesky_ex(work)
    if failed:
        return None
    del diagonal  # a view, which keeps the matrix before
    _invert_lower(work)
    work = work.flip(0, 1)
    return work.contiguous() if torch.isfinite(work.sum()) else None


def _invert_lower(matrix: torch.Tensor) -> None:
    """Invert a lower triangular matrix in place."""
    size, half = len(matrix), len(matrix) // 2
    if size <= _SMALL:
        eye = torch.eye(size, dtype=matrix.dtype, device=matrix.device)
        matrix.copy_(torch.linalg.solve_triangular(matrix, eye, upper=False))
        return
    first, below, last = matrix[:half, :half], matrix[half:, :half], matrix[half:, half:]
    _invert_lower(first)
    _invert_lower(last)
    below.copy_(last @ (below @ first).neg_())


def with_outliers(tensor: QuantizedTensor, columns: torch.Tensor, values: torch.Tensor) -> QuantizedTensor:
    """Return the tensor with columns kept as they are."""
    order = columns.argsort()
    return replace(tensor, outliers=(columns[order], values[:, order].contiguous()))
