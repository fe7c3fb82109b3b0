"""A linear layer with a sparse weight, stored as sparse24.py has it; which product it takes is kernels/sparse24's.

For inference: gradients with respect to inputs work, but through the dense weight.
"""

from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.sparse import SparseTensor
from squeeze.kernels import sparse24
from squeeze.prune.sparse24 import LEAVES, SparseFormat

__all__ = ["Sparse24Linear"]

_FORMAT = SparseFormat()


class Sparse24Linear(nn.Module):
    """y = x W^T + b. On the CPU W is expanded once and the product is that of a dense layer; on a GPU, kernels that
    read only what is kept take it where kernels/sparse24 measured them to be faster."""

    def __init__(self, in_features: int, out_features: int, stored: dict[str, torch.Tensor], bias: torch.Tensor | None):
        """stored: the buffers, by the format's leaves."""
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        for leaf in LEAVES:
            self.register_buffer(leaf, stored.get(leaf))
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self._runtime: tuple[torch.Tensor, torch.dtype, sparse24.Runtime] | None = None

    @classmethod
    def of(cls, weight: SparseTensor, bias: torch.Tensor | None = None) -> "Sparse24Linear":
        """The layer for a weight [O, I]."""
        stored = {name.removeprefix("."): tensor for name, tensor in _FORMAT.tensors("", weight).items()}
        return cls(weight.shape[1], weight.shape[0], stored, bias)

    def sparse(self) -> SparseTensor:
        """The weight, decoded. Raises FormatError or DamagedError where its buffers are not one."""
        buffers = {f".{leaf}": buffer for leaf in LEAVES if (buffer := self._buffers[leaf]) is not None}
        return _FORMAT.weight("", buffers)

    @property
    def weight(self) -> torch.Tensor:
        """The dense weight [O, I], made anew: who writes to it changes nothing."""
        return self.sparse().dequantize(torch.float32 if self.bias is None else self.bias.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self._prepared(x.dtype).multiply(x.reshape(-1, self.in_features))
        y = y.view(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def _load_from_state_dict(self, *arguments: Any, **options: Any) -> None:
        super()._load_from_state_dict(*arguments, **options)
        self._runtime = None

    def _prepared(self, dtype: torch.dtype) -> sparse24.Runtime:
        values = self.get_buffer("sparse_values")
        if self._runtime is None or self._runtime[0] is not values or self._runtime[1] != dtype:
            self._runtime = values, dtype, sparse24.prepare(self.sparse(), dtype, values.device)
        return self._runtime[2]

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
