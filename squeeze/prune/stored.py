"""Sparse weights as a stored form: the layer that multiplies by them, and dense weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.linear import StoredLinear
from squeeze.checkpoint.sparse import SparseTensor
from squeeze.checkpoint.stored import Leaves, Stored, StoredForm, dtype_named, named
from squeeze.errors import FormatError
from squeeze.kernels import sparse24
from squeeze.prune.sparse24 import LEAVES, METHOD, SparseFormat

__all__ = ["Sparse24Linear", "SparseForm"]

_FORMAT = SparseFormat()


class Sparse24Linear(StoredLinear[sparse24.Runtime]):
    """y = x W^T + b with a sparse weight, stored as in sparse24.py.

    On the CPU W is expanded once and multiplied like a dense weight. On a GPU, kernels that read only the kept values
    are used where kernels/sparse24 measured them to be faster.
    """

    known_leaves = LEAVES
    by_dtype = True

    @classmethod
    def of(cls, weight: SparseTensor, bias: torch.Tensor | None = None) -> "Sparse24Linear":
        """Return the layer of a weight [O, I]."""
        stored = {name.removeprefix("."): tensor for name, tensor in _FORMAT.tensors("", weight).items()}
        return cls(weight.shape[1], weight.shape[0], stored, bias)

    def sparse(self) -> SparseTensor:
        """Return the decoded weight. Raises FormatError or DamagedError if the buffers are invalid."""
        sparse = _FORMAT.weight(self._name, named(self._name, self.stored()))
        self._check_shape(sparse.shape)
        return sparse

    @property
    def weight_dtype(self) -> torch.dtype:
        return torch.float32 if self.bias is None else self.bias.dtype

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return self.sparse().dequantize(dtype)

    def prepare(self, dtype: torch.dtype) -> sparse24.Runtime:
        return sparse24.prepare(self.sparse(), dtype, self.get_buffer("sparse_values").device)

    def multiply(self, rows: torch.Tensor, prepared: sparse24.Runtime) -> torch.Tensor:
        return prepared.multiply(rows)


class SparseForm(StoredForm):
    """The form of folders that `squeeze prune` wrote."""

    method = METHOD
    leaves = LEAVES
    mark = "sparse_mask"

    def check(self, described: Mapping[str, Any]) -> None:
        _FORMAT.check(described)

    def open(self, checkpoint: Checkpoint, base: Path | str | None = None) -> Stored | None:
        if (described := self.described(checkpoint)) is None:
            return None
        return Stored(self.modules_of(checkpoint.files), dtype_named(described.get("dtype")), _FORMAT.weight)

    def weight(self, module: str, leaves: Leaves) -> SparseTensor:
        return _FORMAT.weight(module, named(module, leaves))

    def layer(self, module: str, shape: tuple[int, int], leaves: Leaves, bias: torch.Tensor | None) -> nn.Module:
        if "sparse_values" not in leaves or "sparse_grid" not in leaves:
            raise FormatError(f"{module}: expected sparse_values and sparse_grid, got {', '.join(leaves)}")
        return Sparse24Linear(shape[1], shape[0], leaves, bias, module)
