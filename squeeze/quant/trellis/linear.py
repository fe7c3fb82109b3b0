"""A linear layer whose weight stays trellis codes: for few rows on the CPU they are decoded as they are multiplied.

For inference: gradients with respect to inputs work, but through the whole dense weight.
"""

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from squeeze.kernels import trellis
from squeeze.numerics.hadamard import turned
from squeeze.quant.trellis.tensor import LEAVES, ROTATION, TrellisTensor, read

__all__ = ["TrellisLinear"]

_FEW_ROWS = 8  # on the CPU, more rows than these are multiplied by the expanded weight


class TrellisLinear(nn.Module):
    """y = x W^T + b. Inputs are rotated instead of the weight."""

    trellis_codes: torch.Tensor
    trellis_scales: torch.Tensor
    trellis_grid: torch.Tensor

    def __init__(self, in_features: int, out_features: int, stored: dict[str, torch.Tensor], bias: torch.Tensor | None):
        """stored: the buffers, by the form's leaves."""
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        for leaf in LEAVES:
            self.register_buffer(leaf, stored.get(leaf))
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self._prepared: tuple[torch.Tensor, TrellisTensor, np.ndarray | None] | None = None

    @property
    def weight(self) -> torch.Tensor:
        """The dense weight [O, I], in the dtype of the scales."""
        return self._ready()[0].dequantize(self.trellis_scales.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tensor, codes = self._ready()
        if torch.is_grad_enabled() and x.requires_grad:
            bias = None if self.bias is None else self.bias.to(x.dtype)
            return functional.linear(x, tensor.dequantize(x.dtype), bias)
        rows = turned(x.reshape(-1, self.in_features).to(torch.float32), ROTATION)
        if codes is not None and len(rows) <= _FEW_ROWS:
            from squeeze.kernels.trellis import cpu

            y = cpu.matmul(rows.detach(), codes, self.out_features, tensor.rate, torch.get_num_threads())
        else:
            y = functional.linear(rows, trellis.decode(tensor.codes, self.out_features, tensor.rate))
        y = (y * tensor.scales.to(torch.float32)).to(x.dtype)
        if self.bias is not None:
            y = y + self.bias.to(y.dtype)
        return y.view(*x.shape[:-1], self.out_features)

    def _ready(self) -> tuple[TrellisTensor, np.ndarray | None]:
        """The weight, and its codes as the CPU's kernel takes them. Raises FormatError where its buffers are none."""
        if self._prepared is None or self._prepared[0] is not self.trellis_codes:
            tensor = read(str(self), {leaf: self.get_buffer(leaf) for leaf in LEAVES})
            codes = None
            if tensor.codes.device.type == "cpu":
                from squeeze.kernels.trellis import cpu

                codes = cpu.padded(tensor.codes)
            self._prepared = self.trellis_codes, tensor, codes
        return self._prepared[1:]

    def _load_from_state_dict(self, *arguments: Any, **options: Any) -> None:
        super()._load_from_state_dict(*arguments, **options)
        self._prepared = None

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
