"""A matrix as its base's plus a difference, which is pruned, rounded, or both.

What is compressed is the difference W - B; what is to stay is the layer's output (B + D) x, on inputs x that come from
blocks that are compressed already. So the Hessian is that of the sum, and GPTQ's or SparseGPT's error, too:
DeltaZip (Yao et al. 2023, arXiv 2312.05215).
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from squeeze.checkpoint.pattern import Pattern
from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.checkpoint.sparse import SparseTensor
from squeeze.engine.method import Method, Result
from squeeze.prune.delta.base import BaseWeights

__all__ = ["DeltaMethod", "DeltaTensor"]

_DENSE = Pattern(0, 0, 0.0)  # nothing is removed


@dataclass(frozen=True)
class DeltaTensor:
    """base [O, I], floats; delta: what is added to it, in which `pattern` holds, if it is pruned."""

    base: torch.Tensor
    delta: SparseTensor

    @property
    def shape(self) -> tuple[int, int]:
        """(O, I)."""
        return self.delta.shape

    @property
    def pattern(self) -> Pattern | None:
        return None if self.delta.pattern == _DENSE else self.delta.pattern

    def sparse(self) -> torch.Tensor:
        """float32 [O, I], the difference alone."""
        return self.delta.sparse()

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """[O, I], the sum, rounded once to `dtype`."""
        return self.delta.dequantize().add_(self.base).to(dtype)

    @property
    def stored_bits(self) -> int:
        """Of the difference."""
        return self.delta.stored_bits


@dataclass(frozen=True, kw_only=True)
class DeltaMethod:
    """inner: what compresses the difference, a method of quant/ or prune/. name_in_base: of the base's matrix, which is
    [I, O] where it is transposed."""

    name: ClassVar[str] = "delta"
    needs_hessian: ClassVar[bool] = True
    unrounded: ClassVar[bool] = True

    inner: Method
    name_in_base: str
    transposed: bool
    base: BaseWeights = field(repr=False)

    def fallback(self) -> "DeltaMethod":
        return replace(self, inner=self.inner.fallback())

    def compress(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> Result[DeltaTensor]:
        """As Method.compress. The difference is given to `inner` in bfloat16: its own precision, whatever its size."""
        base = self.base.load(self.name_in_base)
        base = base.T if self.transposed else base
        found = self.inner.compress((weight.float() - base.float()).bfloat16(), hessian)
        return Result(DeltaTensor(base, _sparse(found.tensor)), found.notes)


def _sparse(tensor: SparseTensor | QuantizedTensor) -> SparseTensor:
    """A matrix of which nothing is removed in the same form."""
    if isinstance(tensor, SparseTensor):
        return tensor
    return SparseTensor(tensor, torch.ones(tensor.shape, dtype=torch.bool), _DENSE)
