"""What goes around any factorising method: entries kept exactly, and factors that are quantised."""

from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch

from squeeze.factor.form import Form, Matrix
from squeeze.factor.matrices import Exact, LowRank, Pivoted, Sliced
from squeeze.model.method import Method, Result
from squeeze.quant.gptq import GPTQ
from squeeze.quant.tensor import QuantizedTensor

__all__ = ["Quantised", "WithOutliers"]


@dataclass(frozen=True)
class WithOutliers:
    """Keeps the `count` entries of a matrix that matter most, |w| times the root mean square of their inputs, as they
    are, and factorises the rest ("super weights", Yu et al. 2024, arXiv 2411.07191)."""

    method: Method
    count: int

    name: ClassVar[str] = "outliers"

    @property
    def needs_hessian(self) -> bool:
        return self.method.needs_hessian

    def compress(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> Result[Form]:
        """As Method.compress."""
        scale = 1.0 if hessian is None else hessian.diagonal().clamp(min=0).sqrt()
        places = (weight.float().abs() * scale).flatten().topk(min(self.count, weight.numel())).indices.sort().values
        rest = weight.clone()
        rest.view(-1)[places] = 0
        found = self.method.compress(rest, hessian)
        values = weight.flatten()[places]
        return Result(Exact(found.tensor, places.to(torch.int32), values), found.notes)

    def fallback(self) -> Method:
        return cast(Method, WithOutliers(self.method.fallback(), self.count))


@dataclass(frozen=True)
class Quantised:
    """Quantises what a method made with GPTQ: each factor for the inputs that it gets, and of two the second is fitted
    anew to what the first has become. Forms of more than two factors stay as they are, and the report says so."""

    method: Method
    grid: GPTQ

    needs_hessian: ClassVar[bool] = True

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.method.name}+{self.grid.bits} bits"

    def compress(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> Result[Any]:
        """As Method.compress."""
        assert hessian is not None
        found = self.method.compress(weight, hessian)
        form: Any = found.tensor
        if isinstance(form, Pivoted):
            base = self._rounded(form.base, hessian)
            others = weight.double()[~form.mask]
            coefficients = self._second(others, base, hessian, weight.dtype)
            form = Pivoted(form.pivots, coefficients, base)
        elif isinstance(form, LowRank):
            right = self._rounded(form.right, hessian)
            form = LowRank(self._second(weight.double(), right, hessian, weight.dtype), right)
        elif isinstance(form, Sliced):
            inputs = form.at[1]
            form = Sliced(self._rounded(form.core, hessian[inputs][:, inputs]), form.rows, form.columns, form.size)
        elif form.kind == "dense":
            size = torch.tensor(weight.shape, dtype=torch.int32)
            rows, columns = (torch.full((-(-n // 8),), 255, dtype=torch.uint8) for n in weight.shape)
            form = Sliced(self._rounded(form.weight, hessian), rows, columns, size)
        else:
            return Result(form, (*found.notes, f"a {form.kind} matrix is not quantised"))
        return Result(form, found.notes)

    def _rounded(self, matrix: Matrix, hessian: torch.Tensor) -> QuantizedTensor:
        assert isinstance(matrix, torch.Tensor)
        return self.grid.compress(matrix, hessian).tensor

    def _second(
        self, wanted: torch.Tensor, first: QuantizedTensor, hessian: torch.Tensor, dtype: torch.dtype
    ) -> QuantizedTensor:
        """The factor [N, R] behind a first one [R, I] for the rows wanted [N, I]."""
        base = first.dequantize().double()
        reach = base @ hessian.double()
        gram = reach @ base.T
        damped = gram + 1e-6 * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
        fitted = torch.linalg.solve(damped, reach @ wanted.T).T
        return self.grid.compress(fitted.to(dtype), gram.float()).tensor

    def fallback(self) -> Method:
        return self.method.fallback()
