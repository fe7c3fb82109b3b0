"""Factorised weights as a stored form: reading forms from tensors, the layer that multiplies by them, dense weights."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.linear import StoredLinear, Tensors
from squeeze.checkpoint.stored import Leaves, Stored, StoredForm, dtype_named
from squeeze.errors import FormatError
from squeeze.factor import METHOD, VERSION
from squeeze.factor.form import Form, product
from squeeze.factor.matrices import PIFA, LowRank, RowColumnPruned, Shared, SparseResidual
from squeeze.factor.networks import Blast, MonarchMatrix, TTMatrix, TuckerMatrix
from squeeze.quant.formats.squeeze import SqueezeFormat

__all__ = ["FORMS", "LEAVES", "FactorLinear", "FactorizedForm", "basis_of", "join", "modules_of", "read_form"]

_EACH = (LowRank, PIFA, Shared, RowColumnPruned, TTMatrix, TuckerMatrix, MonarchMatrix, Blast)
FORMS: dict[str, type[Form]] = {form.kind: form for form in _EACH}
_PARTS = 4  # most tensors of a tuple


def _names(form: type[Form]) -> list[str]:
    names = []
    for leaf in form.leaves:
        names += [f"{leaf}{i}" for i in range(_PARTS)] if leaf == form.numbered_leaf else [leaf]
        if leaf in form.quantisable:
            names += [f"{leaf}_{part}" for part in SqueezeFormat().leaves]
    return names


LEAVES: tuple[str, ...] = tuple(
    dict.fromkeys((*(name for form in FORMS.values() for name in _names(form)), *SparseResidual.leaves))
)


def read_form(module: str, tensors: Mapping[str, torch.Tensor], as_layers: bool = False) -> Form:
    """Return the form that these tensors are, by their names. Raises FormatError if there is no such form."""
    present = {name for name, tensor in tensors.items() if tensor is not None}
    if set(SparseResidual.leaves) <= present:
        inner = {name: tensor for name, tensor in tensors.items() if name not in SparseResidual.leaves}
        exact = SparseResidual(read_form(module, inner, as_layers), tensors["entries_at"], tensors["entries"])
        try:
            exact.check()
        except ValueError as error:
            raise FormatError(f"{module}: {error}") from None
        return exact
    for form in FORMS.values():
        if present and present <= set(_names(form)) and _complete(form, present):
            try:
                return form.of(tensors, as_layers)
            except FormatError as error:
                raise FormatError(f"{module}: {error}") from None
    raise FormatError(f"{module}: the tensors {', '.join(sorted(present))} are not a known factorised matrix")


def basis_of(module: str, tensors: Mapping[str, torch.Tensor]) -> str | None:
    """Return the name of the module that stores the basis of this one; None if that is this module."""
    leaf = tensors.get("base_of")
    if leaf is None:
        return None
    name = bytes(leaf.tolist()).decode("utf-8", "replace")
    return f"{parent}.{name}" if (parent := module.rpartition(".")[0]) else name


def _complete(form: type[Form], present: set[str]) -> bool:
    return all({leaf, f"{leaf}0", f"{leaf}_codes"} & present for leaf in form.leaves if leaf not in form.optional)


def modules_of(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the leaves of each factorised module, by the module's name."""
    leaves: dict[str, list[str]] = {}
    for name in names:
        module, _, leaf = name.rpartition(".")
        if leaf in LEAVES:
            leaves.setdefault(module, []).append(leaf)
    return leaves


class FactorLinear(StoredLinear[Form]):
    """y = x W^T + b with a factorised weight.

    Floating-point factors are parameters, without gradients until someone enables them (heal.py does); masks and
    quantised factors are buffers.
    """

    owner: Any = None  # the FactorLinear that stores the basis of this one, which is no part of this one
    _followers = 0
    _basis: tuple[torch.Tensor, torch.Tensor, int] | None = None  # x, its product, followers to come

    @classmethod
    def of(cls, form: Form, bias: torch.Tensor | None = None) -> "FactorLinear":
        """Return the layer of a factorised matrix [O, I]."""
        return cls(form.shape[1], form.shape[0], form.tensors(), bias)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_basis": None}

    def _register(self, leaf: str, tensor: torch.Tensor | None) -> None:
        has_codes = any("_codes" in name for name in self.leaves)  # then what belongs to codes is no parameter
        if tensor is not None and tensor.is_floating_point() and not has_codes:
            self.register_parameter(leaf, nn.Parameter(tensor, requires_grad=False))
        else:
            super()._register(leaf, tensor)

    def stored(self) -> dict[str, torch.Tensor]:
        owner = self.owner
        return super().stored() if owner is None else {**super().stored(), "base": owner.base}

    def _dependencies(self) -> Tensors:
        owner = self.owner
        return super()._dependencies() if owner is None else (*super()._dependencies(), owner.base)

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
        """Take the basis from another layer. Raises FormatError if that has none for this one."""
        if "base" not in owner._parameters or owner.in_features != self.in_features:
            raise FormatError(f"{owner._name}: has no basis for {self._name}")
        self.__dict__["owner"] = owner  # past nn.Module, which would make it a part
        owner._followers += 1

    def _times_basis(self, form: Shared, x: torch.Tensor) -> torch.Tensor:
        """Multiply x by the basis, to [T, R]: once for all layers that are called with the same x in turn."""
        owner = self.owner or self
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
    """Connect every layer that is stored without its basis to the layer that has it. Raises FormatError if that is
    missing."""
    for name, module in model.named_modules():
        if isinstance(module, FactorLinear) and (owner := basis_of(name, dict(module.named_buffers()))):
            basis_layer = dict(model.named_modules()).get(owner)
            if not isinstance(basis_layer, FactorLinear):
                raise FormatError(f"{name}: the module {owner}, which stores its basis, is missing")
            module.follow(basis_layer)


class FactorizedForm(StoredForm):
    """The form of folders that `squeeze factorize` wrote. Layers check shapes when values are loaded
    (FactorLinear.prepare)."""

    method = METHOD
    leaves = LEAVES
    mark = ""  # a module may have any of the leaves
    version = VERSION
    what = "squeeze's factorised folders"

    def open(self, checkpoint: Checkpoint, base: Path | str | None = None) -> Stored | None:
        if (config := self.described(checkpoint)) is None:
            return None
        dtype = dtype_named(config.get("dtype"))

        def weight(module: str, tensors: dict[str, torch.Tensor]) -> Form:
            leaves = {name.removeprefix(f"{module}."): tensor for name, tensor in tensors.items()}
            if owner := basis_of(module, leaves):
                if f"{owner}.base" not in checkpoint.files:
                    raise FormatError(f"{module}: the module {owner}, which stores its basis, is missing")
                leaves["base"] = checkpoint.load([f"{owner}.base"])[f"{owner}.base"]
            return read_form(module, leaves)

        return Stored(self.modules_of(checkpoint.files), dtype, weight)

    def weight(self, module: str, leaves: Leaves) -> Form:
        return read_form(module, leaves)

    def layer(self, module: str, shape: tuple[int, int], leaves: Leaves, bias: torch.Tensor | None) -> nn.Module:
        return FactorLinear(shape[1], shape[0], leaves, bias, module)

    def modules_of(self, names: Iterable[str]) -> dict[str, list[str]]:
        return modules_of(names)

    def float_type(self, leaves: Leaves, weight: torch.Tensor) -> torch.dtype | None:
        return None if any(leaf.endswith("_codes") for leaf in leaves) else weight.dtype

    def settle(self, model: nn.Module) -> None:
        join(model)
