"""A linear layer whose weight is a base's, which other models may share, and a difference that is its own.

For inference: gradients with respect to inputs work, but through the dense difference.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.checkpoint.sparse import SparseTensor
from squeeze.errors import FormatError
from squeeze.kernels import sparse24
from squeeze.prune.sparse24 import LEAVES, SparseFormat
from squeeze.quant.linear import QuantLinear

__all__ = ["DeltaLinear"]

_FORMAT = SparseFormat()
_Product = Callable[[torch.Tensor], torch.Tensor]  # [R, I] to [R, O]


class DeltaLinear(nn.Module):
    """y = x B^T + x D^T + b. Codes of D on a grid of integers stay codes, those outside its mask being that of 0, and
    are multiplied as QuantLinear does; floats are expanded once, on a CPU."""

    def __init__(self, in_features: int, out_features: int, stored: dict[str, torch.Tensor], bias: torch.Tensor | None):
        """stored: the buffers of the difference, by the leaves of SparseFormat."""
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        for leaf in LEAVES:
            self.register_buffer(leaf, stored.get(leaf))
        self.register_buffer("base", None, persistent=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self._product: tuple[torch.Tensor, torch.dtype, _Product] | None = None

    def attach(self, base: torch.Tensor) -> None:
        """Take the base's weight [O, I], which is not copied. Raises FormatError where it has another shape."""
        if tuple(base.shape) != (self.out_features, self.in_features):
            raise FormatError(f"a weight of shape {list(base.shape)} is not the base of {self}")
        self.base = base

    def delta(self) -> SparseTensor:
        """The difference, decoded. Raises FormatError or DamagedError where its buffers are none."""
        buffers = {f".{leaf}": buffer for leaf in LEAVES if (buffer := self._buffers[leaf]) is not None}
        delta = _FORMAT.weight("", buffers)
        if delta.shape != (self.out_features, self.in_features):
            raise FormatError(f"a difference of shape {list(delta.shape)} is not that of {self}")
        return delta

    @property
    def weight(self) -> torch.Tensor:
        """The dense weight [O, I], made anew: who writes to it changes nothing."""
        base = self.get_buffer("base")
        return self.delta().dequantize().add_(base).to(base.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.linear(
            x, self.get_buffer("base").to(x.dtype), None if self.bias is None else self.bias.to(x.dtype)
        )
        return y + self._prepared(x.dtype)(x.reshape(-1, self.in_features)).view(y.shape)

    def _load_from_state_dict(self, *arguments: Any, **options: Any) -> None:
        super()._load_from_state_dict(*arguments, **options)
        self._product = None

    def _prepared(self, dtype: torch.dtype) -> _Product:
        values = self.get_buffer("sparse_values")
        if self._product is None or self._product[0] is not values or self._product[1] != dtype:
            self._product = values, dtype, self._made(dtype, values.device)
        return self._product[2]

    def _made(self, dtype: torch.dtype, device: torch.device) -> _Product:
        delta = self.delta()
        if (codes := _with_zeros(delta)) is not None:
            return QuantLinear.of(codes).to(device)
        return sparse24.prepare(delta, dtype, device).multiply

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def _with_zeros(delta: SparseTensor) -> QuantizedTensor | None:
    """Codes of all weights, those outside the mask being that of 0; None for floats, and grids without zero."""
    values = delta.values
    if not isinstance(values, QuantizedTensor) or values.codebook is not None or delta.adapters is not None:
        return None
    zero = torch.tensor(1 << (values.bits - 1), dtype=torch.uint8)
    if values.zeros is not None:
        zero = values.zeros[:, torch.arange(delta.shape[1]) // values.group_size]
    return replace(values, codes=torch.where(delta.mask, values.codes, zero))
