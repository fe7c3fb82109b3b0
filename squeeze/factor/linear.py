"""A linear layer whose weight is in a factorised form, and is multiplied by as it is stored."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from squeeze.errors import FormatError
from squeeze.factor.form import Form, product
from squeeze.factor.forms import basis_of, read_form
from squeeze.factor.matrices import Shared

__all__ = ["FactorLinear", "join"]


class FactorLinear(nn.Module):
    """y = x W^T + b. Floating-point factors are parameters, without gradients until someone asks for them (heal.py
    does); masks and quantised factors are buffers."""

    def __init__(self, in_features: int, out_features: int, stored: Mapping[str, torch.Tensor], bias: Any = None):
        """stored: what Form.tensors gives."""
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.leaves = tuple(stored)
        has_codes = any("_codes" in leaf for leaf in stored)  # then what belongs to codes is no parameter
        for leaf, tensor in stored.items():
            if tensor.is_floating_point() and not has_codes:
                self.register_parameter(leaf, nn.Parameter(tensor, requires_grad=False))
            else:
                self.register_buffer(leaf, tensor)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.__dict__["owner"] = None  # the layer that stores the basis of this one, which is no part of this one
        self._followers = 0
        self._basis: tuple[torch.Tensor, torch.Tensor, int] | None = None  # x, its product, followers to come
        self._form: Form | None = None
        self._made_of: tuple[tuple[str, torch.Tensor], ...] = ()  # what the form was made of

    @classmethod
    def of(cls, form: Form, bias: torch.Tensor | None = None) -> "FactorLinear":
        """The layer for a matrix [O, I]."""
        return cls(form.shape[1], form.shape[0], form.tensors(), bias)

    def form(self) -> Form:
        """The matrix, from the tensors that the layer has now."""
        parameters, buffers, owner = self._parameters, self._buffers, self.__dict__["owner"]
        for leaf, tensor in self._made_of:
            mine = parameters.get(leaf) is tensor or buffers.get(leaf) is tensor
            if not mine and (owner is None or owner._parameters.get(leaf) is not tensor):
                self._form = None
        if self._form is None:
            tensors = {leaf: getattr(self, leaf) for leaf in self.leaves}
            if owner is not None:
                tensors["base"] = owner.base
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
        form, rows = self.form(), x.reshape(-1, self.in_features)
        y = form.finish(self._product(form, x, rows)) if isinstance(form, Shared) else form.multiply(rows)
        y = y.view(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def follow(self, owner: "FactorLinear") -> None:
        """Take the basis from another layer. Raises FormatError where it has none for this one."""
        if "base" not in owner._parameters or owner.in_features != self.in_features:
            raise FormatError("a layer has no basis that another is stored with")
        self.__dict__["owner"] = owner
        owner._followers += 1

    def _product(self, form: Shared, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """rows [T, I], which are x, times the basis: once for all layers that are called with the same x in turn."""
        owner: FactorLinear = self.__dict__["owner"] or self
        known, remaining = owner._basis, owner._followers
        if owner is not self and known is not None and known[0] is x:
            y, remaining = known[1], known[2] - 1
        else:
            y = product(rows, form.base)
        owner._basis = (x, y, remaining) if remaining and (owner is self or known is not None) else None
        return y

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, leaves={self.leaves}"


def join(model: nn.Module) -> None:
    """Give every layer of a model that is stored without its basis the layer that has it. Raises FormatError where
    there is none."""
    for name, module in model.named_modules():
        if isinstance(module, FactorLinear) and (owner := basis_of(name, dict(module.named_buffers()))):
            basis_layer = dict(model.named_modules()).get(owner)
            if not isinstance(basis_layer, FactorLinear):
                raise FormatError(f"{name}: there is no module {owner} that has its basis")
            module.follow(basis_layer)
