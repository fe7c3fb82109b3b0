"""A linear layer whose weight stays quantised: for a GPU in Triton, for the CPU in numba, for all else in torch.

For inference: gradients with respect to inputs work, but through the whole dense weight.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from squeeze.checkpoint import bits as packing
from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.checkpoint.stored import named
from squeeze.errors import FormatError
from squeeze.kernels import dequant, w4a16
from squeeze.kernels.dequant import Packed
from squeeze.kernels.w4a16 import cpu
from squeeze.quant.formats import FORMATS
from squeeze.quant.formats.own import sizes

__all__ = ["QuantLinear"]

_FEW_ROWS = 8  # on the CPU, more rows than these are multiplied by the expanded weight
_PIECE = 1 << 20  # values expanded at a time


@dataclass(frozen=True)
class _Runtime:
    """What `forward` needs on one device. outliers: (inputs, [K, O] to add to what the codes give there)."""

    codes: torch.Tensor
    packed: Packed
    on_cpu: cpu.Prepared | None
    outliers: tuple[torch.Tensor, torch.Tensor] | None


class QuantLinear(nn.Module):
    """y = x W^T + b. Its buffers are what the format `squeeze` stores: see formats/own.py.

    Where a GPU or the numba kernels cannot take the grid (codebooks, short groups), weights are expanded some rows
    at a time.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    grid: torch.Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        stored: dict[str, torch.Tensor],
        bias: torch.Tensor | None,
        name: str = "a quantised layer",
    ):
        """stored: the buffers, by the format's leaves. name: in errors. What is computed raises FormatError where the
        buffers are not those of such a layer."""
        super().__init__()
        self.in_features, self.out_features, self._name = in_features, out_features, name
        for leaf in FORMATS["squeeze"].leaves:
            self.register_buffer(leaf, stored.get(leaf))
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self._runtime: _Runtime | None = None

    @classmethod
    def of(cls, weight: QuantizedTensor, bias: torch.Tensor | None = None) -> "QuantLinear":
        """The layer for a weight [O, I]."""
        tensors = FORMATS["squeeze"].tensors("", weight, weight.scales.dtype)
        stored = {name.removeprefix("."): tensor for name, tensor in tensors.items()}
        return cls(weight.shape[1], weight.shape[0], stored, bias)

    @property
    def weight(self) -> torch.Tensor:
        """The dense weight [O, I], in the dtype of the bias or of the scales."""
        dtype = self.scales.dtype if self.bias is None else self.bias.dtype
        return self.dequantize(dtype if dtype.itemsize > 1 else torch.float32)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The dense weight [O, I]."""
        runtime = self._prepared()
        if runtime.outliers is None:
            return dequant.dequantize(runtime.packed, dtype)
        weight = dequant.dequantize(runtime.packed)
        weight[:, runtime.outliers[0]] = self.get_buffer("outliers").to(torch.float32)
        return weight.to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() and x.requires_grad:
            bias = None if self.bias is None else self.bias.to(x.dtype)
            return functional.linear(x, self.dequantize(x.dtype), bias)
        runtime = self._prepared()
        rows = x.reshape(-1, self.in_features)
        y = self._multiply(rows, runtime)
        if runtime.outliers is not None:
            inputs, change = runtime.outliers
            y = (y + rows[:, inputs].to(torch.float32) @ change).to(x.dtype)
        if self.bias is not None:
            y = y + self.bias.to(y.dtype)
        return y.view(*x.shape[:-1], self.out_features)

    def _multiply(self, x: torch.Tensor, runtime: _Runtime) -> torch.Tensor:
        if x.device.type == "cuda":
            return w4a16.matmul(x, runtime.packed)
        wide = x.detach().to(torch.float32).contiguous()
        if runtime.on_cpu is not None and len(x) <= _FEW_ROWS:
            return cpu.matmul(wide, runtime.on_cpu, torch.get_num_threads()).to(x.dtype)
        y = torch.empty((len(x), self.out_features), dtype=x.dtype, device=x.device)
        step = max(1, _PIECE // max(self.in_features, 1))
        for first in range(0, self.out_features, step):
            last = min(first + step, self.out_features)
            y[:, first:last] = functional.linear(wide, _expanded(runtime, first, last))
        return y

    def _load_from_state_dict(self, *arguments: Any, **options: Any) -> None:
        super()._load_from_state_dict(*arguments, **options)
        self._runtime = None

    def _prepared(self) -> _Runtime:
        if self._runtime is None or self._runtime.codes is not self.codes:
            self._runtime = self._prepare()
        return self._runtime

    def _prepare(self) -> _Runtime:
        *shape, bits, group_size = sizes(self._name, named(self._name, self._present()))
        if shape != [self.out_features, self.in_features]:
            wanted = f"{self.out_features} x {self.in_features}"
            raise FormatError(f"{self._name}: is a matrix of {shape[0]} x {shape[1]}, and the layer is {wanted}")
        zeros, outliers = self._buffers["zeros"], self._buffers["outliers"]
        if zeros is not None:
            zeros = packing.unpack(zeros, bits, self.scales.shape[2])
        scales = self.scales.to(torch.float32) if self.scales.element_size() == 1 else self.scales
        extras = self._buffers["codebook"], self._buffers["global_scale"]
        packed = Packed(self.codes, scales, zeros, bits, group_size, self.in_features, *extras)
        change = None
        if outliers is not None:
            inputs = self.get_buffer("outlier_inputs").long()
            pieces = map(partial(_columns, packed, inputs), range(0, self.out_features, _PIECE // self.in_features + 1))
            change = inputs, (outliers.to(torch.float32) - torch.cat(list(pieces))).T.contiguous()
        on_cpu = cpu.prepare(packed) if self.codes.device.type == "cpu" else None
        return _Runtime(self.codes, packed, on_cpu, change)

    def _present(self) -> dict[str, torch.Tensor]:
        """The buffers that there are."""
        return {leaf: buffer for leaf, buffer in self._buffers.items() if buffer is not None}

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def _expanded(runtime: _Runtime, first: int, last: int) -> torch.Tensor:
    """Rows of the weight in float32."""
    if runtime.on_cpu is None:
        return dequant.dequantize(runtime.packed.rows(first, last))
    out = torch.empty((last - first, runtime.packed.inputs))
    cpu.dequantize(runtime.on_cpu, first, last, out)
    return out


def _columns(packed: Packed, inputs: torch.Tensor, first: int) -> torch.Tensor:
    """Some columns of the rows from `first` on, _PIECE values or a row at most."""
    last = min(first + _PIECE // packed.inputs + 1, packed.outputs)
    return dequant.dequantize(packed.rows(first, last))[:, inputs]
