"""A linear layer whose weight stays trellis codes: for few rows on the CPU they are decoded as they are multiplied."""

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from squeeze.checkpoint.linear import StoredLinear
from squeeze.kernels import trellis
from squeeze.kernels.trellis import cpu
from squeeze.numerics.hadamard import turned
from squeeze.quant.trellis.tensor import LEAVES, ROTATION, TrellisTensor, read

__all__ = ["TrellisLinear"]

_FEW_ROWS = 8  # on the CPU, more rows than these are multiplied by the expanded weight


@dataclass(frozen=True)
class _Runtime:
    """codes: as the CPU's kernel takes them; None on a GPU."""

    tensor: TrellisTensor
    codes: np.ndarray | None


class TrellisLinear(StoredLinear[_Runtime]):
    """y = x W^T + b. Inputs are rotated instead of the weight."""

    known_leaves = LEAVES
    differentiable = False
    trellis_scales: torch.Tensor

    @property
    def weight_dtype(self) -> torch.dtype:
        return self.trellis_scales.dtype

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return self.prepared().tensor.dequantize(dtype)

    def prepare(self, dtype: torch.dtype) -> _Runtime:
        tensor = read(self._name, self.stored())
        return _Runtime(tensor, cpu.padded(tensor.codes) if tensor.codes.device.type == "cpu" else None)

    def multiply(self, rows: torch.Tensor, prepared: _Runtime) -> torch.Tensor:
        tensor, x = prepared.tensor, turned(rows.to(torch.float32), ROTATION)
        if prepared.codes is not None and len(x) <= _FEW_ROWS:
            y = cpu.matmul(x.detach(), prepared.codes, self.out_features, tensor.rate, torch.get_num_threads())
        else:
            y = functional.linear(x, trellis.decode(tensor.codes, self.out_features, tensor.rate))
        return (y * tensor.scales.to(torch.float32)).to(rows.dtype)
