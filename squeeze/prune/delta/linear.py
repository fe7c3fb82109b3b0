"""A linear layer whose weight is a base's, which other models may share, and a difference that is its own."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch.nn import functional

from squeeze.checkpoint.linear import StoredLinear
from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.checkpoint.sparse import SparseTensor
from squeeze.checkpoint.stored import named
from squeeze.errors import FormatError
from squeeze.kernels import sparse24
from squeeze.prune.sparse24 import LEAVES, SparseFormat
from squeeze.quant.linear import QuantLinear

__all__ = ["DeltaLinear"]

_FORMAT = SparseFormat()
_Product = Callable[[torch.Tensor], torch.Tensor]  # [R, I] to [R, O]


class DeltaLinear(StoredLinear[_Product]):
    """y = x B^T + x D^T + b. Codes of D on a grid of integers stay codes, those outside its mask being that of 0, and
    are multiplied as QuantLinear does; floats are expanded once, on a CPU."""

    known_leaves = LEAVES
    by_dtype = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        stored: Mapping[str, torch.Tensor],
        bias: torch.Tensor | None = None,
        name: str = "",
    ) -> None:
        """stored: the buffers of the difference, by the leaves of SparseFormat."""
        super().__init__(in_features, out_features, stored, bias, name)
        self.register_buffer("base", None, persistent=False)

    def attach(self, base: torch.Tensor) -> None:
        """Take the base's weight [O, I], which is not copied. Raises FormatError where it has another shape."""
        if tuple(base.shape) != (self.out_features, self.in_features):
            wanted = f"{self.out_features} x {self.in_features}"
            raise FormatError(f"{self._name}: expected a base of {wanted}, got {' x '.join(map(str, base.shape))}")
        self.base = base

    def delta(self) -> SparseTensor:
        """The difference, decoded. Raises FormatError or DamagedError where its buffers are none."""
        delta = _FORMAT.weight(self._name, named(self._name, self.stored()))
        self._check_shape(delta.shape)
        return delta

    def base_weight(self) -> torch.Tensor:
        """The base's weight [O, I]. Raises FormatError if none is attached."""
        if (base := self._buffers["base"]) is None:
            raise FormatError(f"{self._name}: has no base yet: `attach` gives it one")
        return base

    @property
    def weight_dtype(self) -> torch.dtype:
        return self.base_weight().dtype

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return self.delta().dequantize().add_(self.base_weight()).to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._check(x)
        y = functional.linear(x, self.base_weight().to(x.dtype), self._bias_as(x.dtype))
        return y + self.product(x)

    def prepare(self, dtype: torch.dtype) -> _Product:
        delta, device = self.delta(), self.get_buffer("sparse_values").device
        if (codes := _with_zeros(delta)) is not None:
            return QuantLinear.of(codes).to(device)
        return sparse24.prepare(delta, dtype, device).multiply

    def multiply(self, rows: torch.Tensor, prepared: _Product) -> torch.Tensor:
        return prepared(rows)


def _with_zeros(delta: SparseTensor) -> QuantizedTensor | None:
    """Codes of all weights, those outside the mask being that of 0; None for floats, and grids without zero."""
    values = delta.values
    if not isinstance(values, QuantizedTensor) or values.codebook is not None or delta.adapters is not None:
        return None
    zero = torch.tensor(1 << (values.bits - 1), dtype=torch.uint8)
    if values.zeros is not None:
        zero = values.zeros[:, torch.arange(delta.shape[1]) // values.group_size]
    return replace(values, codes=torch.where(delta.mask, values.codes, zero))
