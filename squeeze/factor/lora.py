"""A fine-tune's matrix as a product of low rank that is added to its base (LoRA, Hu et al. 2021, arXiv 2106.09685).

The difference D becomes B A of a given rank, with the least error of D x over calibration inputs x. That is the
truncated SVD of D S with S S^T = H (SVD-LLM, Wang et al. 2024, arXiv 2403.07378). With bits, A is rounded first, for
inputs x. B is then fitted to what A became, and rounded for inputs A x.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from squeeze.checkpoint.quantized import words_for
from squeeze.engine.method import Result
from squeeze.factor.form import as_dense
from squeeze.factor.lowrank import SVD, Truncation, WhitenedSVD, root
from squeeze.factor.matrices import LowRank
from squeeze.quant.gptq import GPTQ

__all__ = ["LoraMethod", "LoraTensor", "bits_of_rank"]

_GROUP = 64  # inputs that share a scale of A; those of B are by row
_SCALE_BITS = 16
_SIZES_BITS = 2 * 4 * 64  # shape, bits and group size of both factors


@dataclass(frozen=True)
class LoraTensor:
    """A base [O, I] of floats, and the factors B [O, R] and A [R, I] whose product is added to it."""

    base: torch.Tensor
    factors: LowRank

    @property
    def rank(self) -> int | None:
        return self.factors.rank

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return the sum [O, I], rounded once to `dtype`."""
        return (self.base.float() + self.factors.dequantize()).to(dtype)

    @property
    def stored_bits(self) -> int:
        """The bits of the factors' stored tensors."""
        return self.factors.stored_bits


@dataclass(frozen=True, kw_only=True)
class LoraMethod:
    """Store a fine-tune's matrix as a product of low rank that is added to its base.

    Attributes:
        inner: the method that factorises the difference, without pivots.
        load: returns the base's matrix [O, I].
        bits: bits per value of the factors; None leaves them in the weight's dtype.
    """

    name: ClassVar[str] = "lora"
    needs_hessian: ClassVar[bool] = True
    unrounded: ClassVar[bool] = True

    inner: Truncation
    load: Callable[[], torch.Tensor] = field(repr=False, compare=False)
    bits: int | None = None

    @classmethod
    def of_rank(
        cls,
        rank: int,
        load: Callable[[], torch.Tensor],
        bits: int | None = None,
        outputs: torch.Tensor | None = None,
    ) -> "LoraMethod":
        """Return the method of a rank.

        Args:
            rank: Rank of the product.
            load: Returns the base's matrix [O, I].
            bits: Bits per value of the factors, or None.
            outputs: E[g g^T] [O, O] over gradients g of outputs, by which errors are weighted, or None.
        """
        return cls(inner=WhitenedSVD(rank=rank, pivoted=False, outputs=outputs), load=load, bits=bits)

    def fallback(self) -> "LoraMethod":
        return replace(self, inner=SVD(rank=self.inner.rank, pivoted=False))

    def compress(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> Result[LoraTensor]:
        """Factorise the difference of a weight; see Method.compress."""
        base = self.load()
        change = weight.float() - base.float()
        if self.bits is None:
            found = self.inner.compress(change, hessian)
            assert isinstance(found.tensor, LowRank)
            return Result(LoraTensor(base, found.tensor), found.notes)
        left, right = self.inner.factors(change, hessian, min(self.inner.rank or 1, *change.shape))
        return Result(LoraTensor(base, _rounded(change, left, right, hessian, self.bits)))


def bits_of_rank(shape: tuple[int, int], rank: int, bits: int | None, dtype: torch.dtype) -> int:
    """Return the bits that factors of a matrix [O, I] take, with the padding of codes to whole words in each row.

    Args:
        shape: (O, I).
        rank: Rank of the product.
        bits: Bits per value on grids, or None.
        dtype: Dtype of the factors without grids.
    """
    outputs, inputs = shape
    if bits is None:
        return 8 * dtype.itemsize * rank * (outputs + inputs)
    words = outputs * words_for(rank, bits) + rank * words_for(inputs, bits)
    return 32 * words + _SCALE_BITS * (outputs + rank * -(-inputs // _group(inputs))) + _SIZES_BITS


def _group(inputs: int) -> int:
    return _GROUP if inputs % _GROUP == 0 else inputs


def _rounded(
    change: torch.Tensor, left: torch.Tensor, right: torch.Tensor, hessian: torch.Tensor | None, bits: int
) -> LowRank:
    """Return factors on grids.

    Args:
        change: The difference [O, I].
        left: B [O, R].
        right: A [R, I].
        hessian: H [I, I], or None.
        bits: Bits per value.
    """
    of_left, of_right = (
        GPTQ(bits=bits, group_size=size, scale_dtype=torch.bfloat16) for size in (-1, _group(right.shape[1]))
    )
    seen = torch.eye(right.shape[1], dtype=torch.float64) if hessian is None else hessian.double()
    lengths = left.norm(dim=0).clamp(min=1e-30)  # columns of B are then alike, and share a scale in each row
    rounded = of_right.compress((right * lengths[:, None]).float(), seen.float()).tensor
    known = as_dense(rounded).double()
    inner, inverse = root(known @ seen @ known.T, 1e-9)
    fitted = (change.double() @ seen @ known.T) @ (inverse.T @ inverse)
    return LowRank(of_left.compress(fitted.float(), (inner @ inner.T).float()).tensor, rounded)
