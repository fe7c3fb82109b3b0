"""A pruned weight matrix, which methods return and formats store; and the masks of patterns."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb, log2

import torch

from squeeze.checkpoint.pattern import Pattern
from squeeze.checkpoint.quantized import QuantizedTensor

__all__ = ["Adapters", "SparseTensor", "combinations_of", "dense_of", "mask_of", "violations"]

Values = torch.Tensor | QuantizedTensor


def dense_of(values: Values) -> torch.Tensor:
    """Return floats or codes as float32 values."""
    return values.dequantize() if isinstance(values, QuantizedTensor) else values.to(torch.float32)


def _bits(values: Values) -> int:
    return values.stored_bits if isinstance(values, QuantizedTensor) else 8 * values.nbytes


@dataclass(frozen=True)
class Adapters:
    """A low-rank addition left^T @ right, [R, O] and [R, I], as floats or quantised along their rows."""

    left: Values
    right: Values

    def dense(self) -> torch.Tensor:
        """Return the addition, float32 [O, I]."""
        return dense_of(self.left).T @ dense_of(self.right)

    @property
    def stored_bits(self) -> int:
        return _bits(self.left) + _bits(self.right)


@dataclass(frozen=True)
class SparseTensor:
    """A pruned weight [O, I].

    Attributes:
        values: floats in the dtype in which they are stored, or codes on a grid; those outside the mask are ignored.
        mask: bool [O, I], which follows the pattern.
        pattern: of sparsity.
        adapters: a low-rank addition (SLiM), or None.
    """

    values: Values
    mask: torch.Tensor
    pattern: Pattern
    adapters: Adapters | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (O, I)."""
        return self.mask.shape[0], self.mask.shape[1]

    def sparse(self) -> torch.Tensor:
        """Return the weight without the adapters, float32 [O, I]: 0 outside the mask."""
        return dense_of(self.values).masked_fill(~self.mask, 0.0)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return the weight [O, I] with the adapters, rounded once to `dtype`."""
        weight = self.sparse()
        return (weight if self.adapters is None else weight + self.adapters.dense()).to(dtype)

    @property
    def stored_bits(self) -> int:
        """The bits of the kept values, their grid, the mask and the adapters, before entropy coding."""
        count = self.mask.numel()
        kept = int(self.mask.sum())
        if isinstance(self.values, QuantizedTensor):
            values = self.values.stored_bits - self.values.bits * (count - kept)
        else:
            values = 8 * self.values.element_size() * kept
        return values + round(self._mask_bits()) + (self.adapters.stored_bits if self.adapters else 0)

    def _mask_bits(self) -> float:
        """Return log2 of the number of possible masks."""
        pattern, count = self.pattern, self.mask.numel()
        if pattern.m:
            return count / pattern.m * log2(comb(pattern.m, pattern.n))
        units = count / pattern.unit
        p = pattern.removed
        return units * -(p * log2(p) + (1 - p) * log2(1 - p)) if 0 < p < 1 else 0.0


def mask_of(pattern: Pattern, scores: torch.Tensor, by_row: bool = False) -> torch.Tensor:
    """Return the mask of a pattern, bool [R, C], True where a weight stays: those with the highest scores.

    Args:
        pattern: the pattern.
        scores: [R, C].
        by_row: without N:M, compare the scores of each row instead of all.
    """
    rows, columns = scores.shape
    size = pattern.m or pattern.unit
    groups = -(-columns // size)
    fill = -torch.inf if pattern.m else 0.0
    grouped = torch.nn.functional.pad(scores, (0, groups * size - columns), value=fill).reshape(rows, groups, size)
    if pattern.m:
        order = grouped.argsort(stable=True, dim=-1, descending=True)
        keep = torch.zeros(grouped.shape, dtype=torch.bool, device=scores.device)
        keep.scatter_(-1, order[..., : pattern.n], True)
    else:
        lengths = torch.full((groups,), size, device=scores.device)
        lengths[-1] = columns - (groups - 1) * size
        units = grouped.sum(-1) / lengths
        flat = units if by_row else units.reshape(1, -1)
        order = flat.argsort(stable=True, dim=-1)[:, : round(pattern.removed * flat.shape[1])]
        kept_mask = torch.ones(flat.shape, dtype=torch.bool, device=scores.device).scatter_(-1, order, False)
        keep = kept_mask.reshape(rows, groups, 1).expand(grouped.shape)
    return keep.reshape(rows, -1)[:, :columns].contiguous()


def violations(pattern: Pattern, weight: torch.Tensor) -> int:
    """Return the number of groups of a matrix [O, I] that keep too many weights.

    Without N:M, return the number of units by which the removed share is missed, with a tolerance of one a row for
    rounding.
    """
    rows, columns = weight.shape
    size = pattern.m or pattern.unit
    groups = -(-columns // size)
    present = torch.nn.functional.pad(weight != 0, (0, groups * size - columns)).reshape(rows, groups, size)
    if pattern.m:
        return int((present.sum(-1) > pattern.n).sum())
    empty = int((~present.any(-1)).sum())
    return max(0, int(pattern.removed * rows * groups) - empty - rows)


@lru_cache
def combinations_of(n: int, m: int) -> torch.Tensor:
    """Return every mask that keeps N of M, bool [C, M], in lexicographic order of the kept places; 6 for 2:4."""
    chosen = list(combinations(range(m), n))
    masks = torch.zeros((len(chosen), m), dtype=torch.bool)
    for row, places in zip(masks, chosen, strict=True):
        row[list(places)] = True
    return masks
