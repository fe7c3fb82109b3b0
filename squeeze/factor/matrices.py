"""Forms of low rank, matrices without some rows or columns, and whole matrices."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch

from squeeze.factor.form import Form, Matrix, as_dense, mask_of, product
from squeeze.kernels import lowrank

__all__ = ["PIFA", "Dense", "LowRank", "RowColumnPruned", "Shared", "SparseResidual"]


def _rows(matrix: Matrix) -> int:
    return matrix.out_features if hasattr(matrix, "out_features") else matrix.shape[0]  # type: ignore[union-attr]


def _columns(matrix: Matrix) -> int:
    return matrix.in_features if hasattr(matrix, "in_features") else matrix.shape[1]  # type: ignore[union-attr]


def _columns_at(y: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return the columns of y [T, N] at `places`, int64 [N]."""
    if y.device.type != "cpu" or y.requires_grad or y.dtype == torch.float32:
        return y.index_select(1, places)
    return y.gather(1, places.expand(len(y), -1))  # up to three times as fast with 16 bits on CPUs


@dataclass(frozen=True)
class Dense(Form):
    """A whole weight [O, I], which may have changed to compensate for errors of earlier layers."""

    kind: ClassVar[str] = "dense"
    leaves: ClassVar[tuple[str, ...]] = ("weight",)

    weight: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.shape[0], self.weight.shape[1]

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        return product(x, self.weight)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return self.weight.to(dtype)


@dataclass(frozen=True)
class LowRank(Form):
    """The product of left [O, R] and right [R, I]."""

    kind: ClassVar[str] = "low-rank"
    ranked: ClassVar[str] = "right"
    leaves: ClassVar[tuple[str, ...]] = ("left", "right")
    quantisable: ClassVar[tuple[str, ...]] = ("left", "right")

    left: Matrix
    right: Matrix

    @property
    def shape(self) -> tuple[int, int]:
        return _rows(self.left), _columns(self.right)

    def check(self) -> None:
        if _columns(self.left) != _rows(self.right):
            raise ValueError(f"ranks {_columns(self.left)} and {_rows(self.right)} differ")

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        if x.is_cuda and isinstance(self.left, torch.Tensor) and isinstance(self.right, torch.Tensor):
            return lowrank.multiply(x, self.left.to(x.dtype), self.right.to(x.dtype))
        return product(product(x, self.right), self.left)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return (as_dense(self.left) @ as_dense(self.right)).to(dtype)


@dataclass(frozen=True)
class PIFA(Form):
    """R rows of a matrix, base [R, I], and every other row as coefficients [O - R, R] of those.

    A matrix of rank R takes R (O + I - R) values, never more than O I: the gauge freedom of left times right is used up
    (PIFA, Zhao et al. 2025, arXiv 2501.19090). `pivots` has a bit for each row, set for those of the base.
    """

    kind: ClassVar[str] = "pivoted"
    ranked: ClassVar[str] = "base"
    leaves: ClassVar[tuple[str, ...]] = ("pivots", "coefficients", "base")
    quantisable: ClassVar[tuple[str, ...]] = ("coefficients", "base")

    pivots: torch.Tensor
    coefficients: Matrix
    base: Matrix

    @property
    def shape(self) -> tuple[int, int]:
        return _rows(self.base) + _rows(self.coefficients), _columns(self.base)

    def check(self) -> None:
        if _columns(self.coefficients) != _rows(self.base) or int(self.mask.sum()) != _rows(self.base):
            raise ValueError("base, coefficients and pivots are of different ranks")

    @cached_property
    def mask(self) -> torch.Tensor:
        """The rows of the base, bool [O]."""
        return mask_of(self.pivots, self.shape[0])

    @cached_property
    def places(self) -> torch.Tensor:
        """The place of each row when the other rows follow the base, int64 [O]."""
        mask = self.mask
        return torch.where(mask, mask.cumsum(0) - 1, int(mask.sum()) + (~mask).cumsum(0) - 1)

    @cached_property
    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """The row numbers of the base, int64 [R], and of the other rows, int64 [O - R]."""
        return self.mask.nonzero()[:, 0].numpy(), (~self.mask).nonzero()[:, 0].numpy()

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        base, coefficients = self.base, self.coefficients
        if (
            isinstance(base, torch.Tensor)
            and isinstance(coefficients, torch.Tensor)
            and lowrank.can_multiply_pivoted(x, base, coefficients)
        ):
            return lowrank.multiply_pivoted(x, base, coefficients, *self.rows)
        y = product(x, base)
        return _columns_at(torch.cat((y, product(y, coefficients)), 1), self.places)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        base = as_dense(self.base)
        return torch.cat([base, as_dense(self.coefficients) @ base])[self.places].to(dtype)


@dataclass(frozen=True)
class Shared(Form):
    """A PIFA matrix whose basis [R, I] is shared by several matrices with the same inputs.

    Its pivots are the basis's rows from `start` (int32 [1]) on. `base_of` is the last part of the name of the module
    that stores the basis, uint8; None if that is this module.
    """

    kind: ClassVar[str] = "shared"
    ranked: ClassVar[str] = "base"
    leaves: ClassVar[tuple[str, ...]] = ("pivots", "coefficients", "start", "base", "base_of")
    optional: ClassVar[tuple[str, ...]] = ("base_of",)

    pivots: torch.Tensor
    coefficients: torch.Tensor
    start: torch.Tensor
    base: torch.Tensor
    base_of: torch.Tensor | None = None

    @cached_property
    def rows(self) -> tuple[int, int]:
        """The matrix's own rows of the basis: the first, and the one after the last."""
        count = 0
        for byte in self.pivots.tolist():
            count += int(byte).bit_count()
        first = int(self.start)
        return first, first + count

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows[1] - self.rows[0] + len(self.coefficients), self.base.shape[1]

    def check(self) -> None:
        if self.start.shape != (1,) or self.coefficients.shape[1] != len(self.base):
            raise ValueError("base, coefficients and start are of different ranks")
        first, last = self.rows
        if not 0 <= first <= last <= len(self.base):
            raise ValueError("its rows are outside the base")
        if len(self.pivots) != -(-self.shape[0] // 8) or int(mask_of(self.pivots, self.shape[0]).sum()) != last - first:
            raise ValueError("the number of pivots is not that of its rows")

    @cached_property
    def places(self) -> torch.Tensor:
        """The place of each row when the other rows follow the matrix's rows of the basis, int64 [O]."""
        mask = mask_of(self.pivots, self.shape[0])
        return torch.where(mask, mask.cumsum(0) - 1, int(mask.sum()) + (~mask).cumsum(0) - 1)

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        return self.finish(product(x, self.base))

    def finish(self, z: torch.Tensor) -> torch.Tensor:
        """Return the product with x, given that of the basis [T, R]."""
        first, last = self.rows
        return _columns_at(torch.cat((z[:, first:last], product(z, self.coefficients)), 1), self.places)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        base = self.base.float()
        own = base[slice(*self.rows)]
        return torch.cat([own, self.coefficients.float() @ base])[self.places].to(dtype)

    def tensors(self) -> dict[str, torch.Tensor]:
        stored = super().tensors()
        if self.base_of is not None:
            del stored["base"]
        return stored


@dataclass(frozen=True)
class RowColumnPruned(Form):
    """A matrix with a core [R, C] in some rows and columns, and 0 elsewhere.

    `rows` [ceil(O / 8)] and `columns` [ceil(I / 8)] are packed masks; `size` is int32 [2], O and I.
    """

    kind: ClassVar[str] = "sliced"
    leaves: ClassVar[tuple[str, ...]] = ("core", "rows", "columns", "size")
    quantisable: ClassVar[tuple[str, ...]] = ("core",)

    core: Matrix
    rows: torch.Tensor
    columns: torch.Tensor
    size: torch.Tensor

    @cached_property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]
        outputs, inputs = (int(size) for size in self.size.tolist())
        return outputs, inputs

    def check(self) -> None:
        if (len(self.at[0]), len(self.at[1])) != (_rows(self.core), _columns(self.core)):
            raise ValueError("the core has other rows or columns than are set")

    @cached_property
    def at(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The row and column numbers of the core, int64 [R] and [C]."""
        masks = (mask_of(packed, size) for packed, size in zip((self.rows, self.columns), self.shape, strict=True))
        rows, columns = (mask.nonzero()[:, 0] for mask in masks)
        return rows, columns

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns = self.at
        few = x if len(columns) == self.shape[1] else x.index_select(1, columns)
        y = product(few, self.core)
        if len(rows) == self.shape[0]:
            return y
        return y.new_zeros(len(y), self.shape[0]).index_copy_(1, rows, y)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        out = torch.zeros(self.shape, device=self.size.device)
        rows, columns = self.at
        out[rows[:, None], columns] = as_dense(self.core)
        return out.to(dtype)


@dataclass(frozen=True)
class SparseResidual(Form):
    """Another form, in which some entries are replaced by exact values.

    `entries_at` are places, int32 [K], row * I + column; `entries` are the values [K].
    """

    kind: ClassVar[str] = "exact entries"
    leaves: ClassVar[tuple[str, ...]] = ("entries_at", "entries")

    base_form: Form
    entries_at: torch.Tensor
    entries: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.base_form.shape

    def tensors(self) -> dict[str, torch.Tensor]:
        if isinstance(self.base_form, Dense):  # a plain weight
            return Dense(self.dequantize(self.entries.dtype)).tensors()
        return {**self.base_form.tensors(), "entries_at": self.entries_at, "entries": self.entries}

    def check(self) -> None:
        places = self.entries_at.tolist()
        inside = all(0 <= place < self.shape[0] * self.shape[1] for place in places)
        if self.entries_at.shape != self.entries.shape or not inside:
            raise ValueError("an entry is outside the matrix")

    @cached_property
    def at(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows and columns of the entries, int64 [K]."""
        places = self.entries_at.long()
        return places // self.shape[1], places % self.shape[1]

    @cached_property
    def _fixed(self) -> torch.Tensor:
        return self._change()

    def _change(self) -> torch.Tensor:
        """Return the differences of the entries from the other form, float32 [K]."""
        with torch.autocast(self.entries.device.type, enabled=False):
            return self.entries.float() - self.base_form.dequantize()[self.at]

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns = self.at
        learns = any(isinstance(one, torch.Tensor) and one.requires_grad for one in self.tensors().values())
        change = self._change() if learns else self._fixed
        y = self.base_form.multiply(x)
        return y.index_add(1, rows, (x[:, columns].float() * change).to(y.dtype))

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        dense = self.base_form.dequantize().clone()  # which may be what is stored
        dense.view(-1)[self.entries_at.long()] = self.entries.float()
        return dense.to(dtype)
