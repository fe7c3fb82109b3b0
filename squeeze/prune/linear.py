"""A linear layer with a sparse weight, stored as sparse24.py has it; which product it takes is kernels/sparse24's."""

import torch

from squeeze.checkpoint.linear import StoredLinear
from squeeze.checkpoint.sparse import SparseTensor
from squeeze.checkpoint.stored import named
from squeeze.kernels import sparse24
from squeeze.prune.sparse24 import LEAVES, SparseFormat

__all__ = ["Sparse24Linear"]

_FORMAT = SparseFormat()


class Sparse24Linear(StoredLinear[sparse24.Runtime]):
    """y = x W^T + b. On the CPU W is expanded once and the product is that of a dense layer; on a GPU, kernels that
    read only what is kept take it where kernels/sparse24 measured them to be faster."""

    known_leaves = LEAVES
    by_dtype = True

    @classmethod
    def of(cls, weight: SparseTensor, bias: torch.Tensor | None = None) -> "Sparse24Linear":
        """The layer for a weight [O, I]."""
        stored = {name.removeprefix("."): tensor for name, tensor in _FORMAT.tensors("", weight).items()}
        return cls(weight.shape[1], weight.shape[0], stored, bias)

    def sparse(self) -> SparseTensor:
        """The weight, decoded. Raises FormatError or DamagedError where its buffers are not one."""
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
