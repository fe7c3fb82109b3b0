"""A linear layer whose weight is in a factorised form, and is multiplied by as it is stored."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from squeeze.errors import FormatError
from squeeze.factor.form import Form
from squeeze.factor.forms import read_form

__all__ = ["FactorLinear"]


class FactorLinear(nn.Module):
    """y = x W^T + b. Floating-point factors are parameters, without gradients until someone asks for them (heal.py
    does); masks and quantised factors are buffers."""

    def __init__(self, in_features: int, out_features: int, stored: Mapping[str, torch.Tensor], bias: Any = None):
        """stored: what Form.tensors gives."""
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.leaves = tuple(stored)
        whole = any("_codes" in leaf for leaf in stored)  # then what belongs to codes is no parameter
        for leaf, tensor in stored.items():
            if tensor.is_floating_point() and not whole:
                self.register_parameter(leaf, nn.Parameter(tensor, requires_grad=False))
            else:
                self.register_buffer(leaf, tensor)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self._form: Form | None = None
        self._made_of: tuple[tuple[str, torch.Tensor], ...] = ()  # what the form was made of

    @classmethod
    def of(cls, form: Form, bias: torch.Tensor | None = None) -> "FactorLinear":
        """The layer for a matrix [O, I]."""
        return cls(form.shape[1], form.shape[0], form.tensors(), bias)

    def form(self) -> Form:
        """The matrix, from the tensors that the layer has now."""
        parameters, buffers = self._parameters, self._buffers
        for leaf, tensor in self._made_of:
            if parameters.get(leaf) is not tensor and buffers.get(leaf) is not tensor:
                self._form = None
        if self._form is None:
            tensors = {leaf: getattr(self, leaf) for leaf in self.leaves}
            form = read_form(type(self).__name__, tensors, as_layers=True)
            if form.shape != (self.out_features, self.in_features):
                raise FormatError(f"a matrix {list(form.shape)} is stored for {self.out_features} x {self.in_features}")
            self._form, self._made_of = form, tuple(tensors.items())
        return self._form

    @property
    def weight(self) -> torch.Tensor:
        """The dense weight [O, I]."""
        dtypes = [tensor.dtype for tensor in self.parameters()]
        return self.form().dequantize(dtypes[0] if dtypes else torch.float32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.form().multiply(x.reshape(-1, self.in_features)).view(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, leaves={self.leaves}"
