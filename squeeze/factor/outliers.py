"""Wrappers of any factorising method: exact entries, and quantised factors."""

from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.engine.method import Method, Result
from squeeze.factor.form import Form, Matrix
from squeeze.factor.matrices import PIFA, Dense, LowRank, RowColumnPruned, SparseResidual
from squeeze.quant.gptq import GPTQ
from squeeze.quant.rtn import RTN

__all__ = ["Quantised", "WithOutliers"]


@dataclass(frozen=True)
class WithOutliers:
    """Keep the `count` most important entries of a matrix W (out, in) exactly, and factorise the rest.

    Importance is |w| times the root mean square of its input ("super weights", Yu et al. 2024, arXiv 2411.07191).
    """

    method: Method
    count: int

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.method.name} and entries"

    @property
    def needs_hessian(self) -> bool:
        return self.method.needs_hessian

    def compress(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> Result[Form]:
        """Factorise a weight; see Method.compress."""
        scale = 1.0 if hessian is None else hessian.diagonal().clamp(min=0).sqrt()
        places = (weight.float().abs() * scale).flatten().topk(min(self.count, weight.numel())).indices.sort().values
        remainder = weight.clone(memory_format=torch.contiguous_format)
        remainder.view(-1)[places] = 0
        result = self.method.compress(remainder, hessian)
        values = weight.flatten()[places]
        return replace(result, tensor=SparseResidual(result.tensor, places.to(torch.int32), values))

    def fallback(self) -> Method:
        return cast(Method, WithOutliers(self.method.fallback(), self.count))


@dataclass(frozen=True)
class Quantised:
    """Quantise the factors of another method, each for the inputs that it gets.

    The second of two factors is fitted to the quantised first. Forms of more than two factors stay as they are, and the
    report says so.
    """

    method: Method
    grid: GPTQ | RTN

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.method.name}+{self.grid.bits} bits"

    @property
    def needs_hessian(self) -> bool:  # type: ignore[override]
        return self.grid.needs_hessian

    def compress(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> Result[Any]:
        """Factorise a weight; see Method.compress."""
        result = self.method.compress(weight, hessian)
        form: Form = result.tensor
        if not isinstance(form, SparseResidual):
            return self._quantised(result, weight, hessian)
        remainder = weight.clone(memory_format=torch.contiguous_format)
        remainder.view(-1)[form.entries_at.long()] = 0
        inner = self._quantised(replace(result, tensor=form.base_form), remainder, hessian)
        return replace(inner, tensor=SparseResidual(inner.tensor, form.entries_at, form.entries))

    def _quantised(self, result: Result[Any], weight: torch.Tensor, hessian: torch.Tensor | None) -> Result[Any]:
        """Return the result for a weight [O, I] with quantised factors."""
        form, notes = result.tensor, result.notes
        if isinstance(form, PIFA):
            base = self._rounded(form.base, hessian)
            other_rows = weight[~form.mask]
            form = PIFA(form.pivots, self._second(other_rows, base, hessian), base)
        elif isinstance(form, LowRank):
            right = self._rounded(form.right, hessian)
            form = LowRank(self._second(weight, right, hessian), right)
        elif isinstance(form, RowColumnPruned):
            inputs = form.at[1]
            core = self._rounded(form.core, None if hessian is None else hessian[inputs][:, inputs])
            form = RowColumnPruned(core, form.rows, form.columns, form.size)
        elif isinstance(form, Dense):
            device = weight.device
            size = torch.tensor(weight.shape, dtype=torch.int32, device=device)
            rows, columns = (torch.full((-(-n // 8),), 255, dtype=torch.uint8, device=device) for n in weight.shape)
            form = RowColumnPruned(self._rounded(form.weight, hessian), rows, columns, size)
        else:
            notes = (*notes, f"a {form.kind} matrix is not quantised")
        return replace(result, tensor=form, notes=notes)

    def _rounded(self, matrix: Matrix, hessian: torch.Tensor | None) -> QuantizedTensor:
        assert isinstance(matrix, torch.Tensor)
        grid = self.grid if len(matrix) else self.grid.fallback()
        return grid.compress(matrix, hessian).tensor

    def _second(self, target: torch.Tensor, first: QuantizedTensor, hessian: torch.Tensor | None) -> QuantizedTensor:
        """Return the factor [N, R] after a quantised first one [R, I], for the wanted rows [N, I].

        Without a Hessian all inputs count alike.
        """
        base = first.dequantize().double()
        reach = base if hessian is None else base @ hessian.double()
        gram = reach @ base.T
        damped = gram + (1e-6 * gram.diagonal().mean() + 1e-30) * torch.eye(len(gram)).to(gram)
        fitted = torch.linalg.solve(damped, reach @ target.double().T).T
        return self._rounded(fitted.to(target.dtype), gram.float())

    def fallback(self) -> Method:
        return cast(Method, Quantised(self.method.fallback(), self.grid.fallback()))
