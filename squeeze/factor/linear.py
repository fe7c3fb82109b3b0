"""A linear layer whose weight is in a factorised form, and is multiplied by as it is stored."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.linear import StoredLinear, Tensors
from squeeze.errors import FormatError
from squeeze.factor.form import Form, product
from squeeze.factor.forms import basis_of, read_form
from squeeze.factor.matrices import Shared

__all__ = ["FactorLinear", "join"]


class FactorLinear(StoredLinear[Form]):
    """y = x W^T + b. Floating-point factors are parameters, without gradients until someone asks for them (heal.py
    does); masks and quantised factors are buffers."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        stored: Mapping[str, torch.Tensor],
        bias: torch.Tensor | None = None,
        name: str = "",
    ) -> None:
        """stored: what Form.tensors gives."""
        super().__init__(in_features, out_features, stored, bias, name)
        self.__dict__["owner"] = None  # the layer that stores the basis of this one, which is no part of this one
        self._followers = 0
        self._basis: tuple[torch.Tensor, torch.Tensor, int] | None = None  # x, its product, followers to come

    @classmethod
    def of(cls, form: Form, bias: torch.Tensor | None = None) -> "FactorLinear":
        """The layer for a matrix [O, I]."""
        return cls(form.shape[1], form.shape[0], form.tensors(), bias)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_basis": None}

    def _hold(self, leaf: str, tensor: torch.Tensor | None) -> None:
        has_codes = any("_codes" in name for name in self.leaves)  # then what belongs to codes is no parameter
        if tensor is not None and tensor.is_floating_point() and not has_codes:
            self.register_parameter(leaf, nn.Parameter(tensor, requires_grad=False))
        else:
            super()._hold(leaf, tensor)

    def stored(self) -> dict[str, torch.Tensor]:
        owner = self.__dict__.get("owner")
        return super().stored() if owner is None else {**super().stored(), "base": owner.base}

    def _made_of(self) -> Tensors:
        owner = self.__dict__["owner"]
        return super()._made_of() if owner is None else (*super()._made_of(), owner.base)

    @property
    def weight_dtype(self) -> torch.dtype:
        return next((tensor.dtype for tensor in self.parameters()), torch.float32)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return self.prepared().dequantize(dtype)

    def prepare(self, dtype: torch.dtype) -> Form:
        form = read_form(self._name, self.stored(), as_layers=True)
        self._check_shape(form.shape)
        return form

    def multiply(self, rows: torch.Tensor, prepared: Form) -> torch.Tensor:
        return prepared.multiply(rows)

    def product(self, x: torch.Tensor) -> torch.Tensor:
        form = self.prepared()
        if not isinstance(form, Shared):
            return super().product(x)
        return form.finish(self._times_basis(form, x)).view(*x.shape[:-1], self.out_features)

    def follow(self, owner: "FactorLinear") -> None:
        """Take the basis from another layer. Raises FormatError where it has none for this one."""
        if "base" not in owner._parameters or owner.in_features != self.in_features:
            raise FormatError("a layer has no basis that another is stored with")
        self.__dict__["owner"] = owner
        owner._followers += 1

    def _times_basis(self, form: Shared, x: torch.Tensor) -> torch.Tensor:
        """x times the basis, [T, R]: once for all layers that are called with the same x in turn."""
        owner: FactorLinear = self.__dict__["owner"] or self
        known, remaining = owner._basis, owner._followers
        if owner is not self and known is not None and known[0] is x:
            y, remaining = known[1], known[2] - 1
        else:
            y = product(self.flattened(x), form.base)
        owner._basis = (x, y, remaining) if remaining and (owner is self or known is not None) else None
        return y

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, leaves={self.leaves}"


def join(model: nn.Module) -> None:
    """Give every layer of a model that is stored without its basis the layer that has it. Raises FormatError where
    there is none."""
    for name, module in model.named_modules():
        if isinstance(module, FactorLinear) and (owner := basis_of(name, dict(module.named_buffers()))):
            basis_layer = dict(model.named_modules()).get(owner)
            if not isinstance(basis_layer, FactorLinear):
                raise FormatError(f"{name}: there is no module {owner} that has its basis")
            module.follow(basis_layer)
