"""Compression of a matrix as its base plus a difference that is pruned, rounded, or both.

The difference W - B is compressed; the layer's output (B + D) x is to stay, on inputs x that come from compressed
blocks. So the Hessian, and GPTQ's or SparseGPT's error, are those of the sum: DeltaZip (Yao et al. 2023, arXiv
2312.05215).
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
    """A base [O, I] of floats, and the difference that is added to it, whose `pattern` is that of the result if it
    is pruned."""

    base: torch.Tensor
    delta: SparseTensor

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (O, I)."""
        return self.delta.shape

    @property
    def pattern(self) -> Pattern | None:
        return None if self.delta.pattern == _DENSE else self.delta.pattern

    def sparse(self) -> torch.Tensor:
        """Return the difference alone, float32 [O, I]."""
        return self.delta.sparse()

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return the sum [O, I], rounded once to `dtype`."""
        return self.delta.dequantize().add_(self.base).to(dtype)

    @property
    def stored_bits(self) -> int:
        """The bits of the difference."""
        return self.delta.stored_bits


@dataclass(frozen=True, kw_only=True)
class DeltaMethod:
    """Store a fine-tune as the compressed difference from its base: 1 to 4 bits a weight, with the base shared.

    compress takes W (out, in) and H (in, in). DeltaZip, Yao et al. 2023, arXiv 2312.05215.

    Attributes:
        inner: the method of quant/ or prune/ that compresses the difference.
        name_in_base: name of the base's matrix.
        transposed: whether that is [I, O].
        base: the base's tensors.
    """

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
        """Compress a weight; see Method.compress. `inner` is given the difference in bfloat16."""
        base = self.base.load(self.name_in_base)
        base = base.T if self.transposed else base
        found = self.inner.compress((weight.float() - base.float()).bfloat16(), hessian)
        return Result(DeltaTensor(base, _sparse(found.tensor)), found.notes)


def _sparse(tensor: SparseTensor | QuantizedTensor) -> SparseTensor:
    """Return the tensor as a sparse one, with nothing removed if it is quantised only."""
    if isinstance(tensor, SparseTensor):
        return tensor
    return SparseTensor(tensor, torch.ones(tensor.shape, dtype=torch.bool), _DENSE)
