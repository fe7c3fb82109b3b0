"""The linear layer of our own format, whose weight stays quantised."""

from dataclasses import dataclass
from functools import partial

import torch
from torch.nn import functional

from squeeze.checkpoint import quantized as packing
from squeeze.checkpoint.linear import StoredLinear
from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.checkpoint.stored import named
from squeeze.kernels import dequant, w4a16
from squeeze.kernels.dequant import Packed
from squeeze.kernels.w4a16 import cpu
from squeeze.quant.formats import FORMATS
from squeeze.quant.formats.squeeze import sizes

__all__ = ["QuantLinear"]

_FEW_ROWS = 8  # on the CPU, more rows than this are multiplied by the expanded weight
_PIECE = 1 << 20  # values expanded at a time


@dataclass(frozen=True)
class _Runtime:
    """The prepared weight on one device. `outliers` are (inputs, [K, O] to add to the product of the codes)."""

    packed: Packed
    on_cpu: cpu.Prepared | None
    outliers: tuple[torch.Tensor, torch.Tensor] | None


class QuantLinear(StoredLinear[_Runtime]):
    """y = x W^T + b with a weight that stays quantised: Triton on a GPU, numba on the CPU, torch otherwise.

    Its buffers are those of the format `squeeze` (formats/squeeze.py). Grids that the kernels do not support
    (codebooks, short groups) are expanded some rows at a time.
    """

    known_leaves = FORMATS["squeeze"].leaves
    differentiable = False
    codes: torch.Tensor
    scales: torch.Tensor

    @classmethod
    def of(cls, weight: QuantizedTensor, bias: torch.Tensor | None = None) -> "QuantLinear":
        """Return the layer of a weight [O, I]."""
        tensors = FORMATS["squeeze"].tensors("", weight, weight.scales.dtype)
        stored = {name.removeprefix("."): tensor for name, tensor in tensors.items()}
        return cls(weight.shape[1], weight.shape[0], stored, bias)

    @property
    def weight_dtype(self) -> torch.dtype:
        dtype = self.scales.dtype if self.bias is None else self.bias.dtype
        return dtype if dtype.itemsize > 1 else torch.float32

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        runtime = self.prepared()
        if runtime.outliers is None:
            return dequant.dequantize(runtime.packed, dtype)
        weight = dequant.dequantize(runtime.packed)
        weight[:, runtime.outliers[0]] = self.get_buffer("outliers").to(torch.float32)
        return weight.to(dtype)

    def multiply(self, rows: torch.Tensor, prepared: _Runtime) -> torch.Tensor:
        y = self._times_codes(rows, prepared)
        if prepared.outliers is None:
            return y
        inputs, change = prepared.outliers
        return (y + rows[:, inputs].to(torch.float32) @ change).to(rows.dtype)

    def packed(self) -> Packed:
        """Return the weight for kernels, without outliers, with the stored codes and no copy of them.

        Raises FormatError if the tensors are not those of such a layer.
        """
        *shape, bits, group_size = sizes(self._name, named(self._name, self.stored()))
        self._check_shape(shape)
        zeros = self._buffers["zeros"]
        if zeros is not None:
            zeros = packing.unpack(zeros, bits, self.scales.shape[2])
        scales = self.scales.to(torch.float32) if self.scales.element_size() == 1 else self.scales
        extras = self._buffers["codebook"], self._buffers["global_scale"]
        return Packed(self.codes, scales, zeros, bits, group_size, self.in_features, *extras)

    def _times_codes(self, x: torch.Tensor, runtime: _Runtime) -> torch.Tensor:
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

    def prepare(self, dtype: torch.dtype) -> _Runtime:
        packed, outliers, change = self.packed(), self._buffers["outliers"], None
        if outliers is not None:
            inputs = self.get_buffer("outlier_inputs").long()
            pieces = map(partial(_columns, packed, inputs), range(0, self.out_features, _PIECE // self.in_features + 1))
            change = inputs, (outliers.to(torch.float32) - torch.cat(list(pieces))).T.contiguous()
        on_cpu = cpu.prepare(packed) if self.codes.device.type == "cpu" else None
        return _Runtime(packed, on_cpu, change)


def _expanded(runtime: _Runtime, first: int, last: int) -> torch.Tensor:
    """Return rows `first` to `last` of the weight in float32."""
    if runtime.on_cpu is None:
        return dequant.dequantize(runtime.packed.rows(first, last))
    out = torch.empty((last - first, runtime.packed.inputs))
    cpu.dequantize(runtime.on_cpu, first, last, out)
    return out


def _columns(packed: Packed, inputs: torch.Tensor, first: int) -> torch.Tensor:
    """Return some columns of the rows from `first` on, at most _PIECE values or one row."""
    last = min(first + _PIECE // packed.inputs + 1, packed.outputs)
    return dequant.dequantize(packed.rows(first, last))[:, inputs]
