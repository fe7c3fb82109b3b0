"""Every form that a matrix can be stored in, by the names of its tensors."""

from collections.abc import Iterable, Mapping

import torch

from squeeze.errors import FormatError
from squeeze.factor.form import Form
from squeeze.factor.matrices import PIFA, LowRank, RowColumnPruned, Shared, SparseResidual
from squeeze.factor.networks import Blast, MonarchMatrix, TTMatrix, TuckerMatrix
from squeeze.quant.formats.own import SqueezeFormat

__all__ = ["FORMS", "LEAVES", "basis_of", "modules_of", "read_form"]

_EACH = (LowRank, PIFA, Shared, RowColumnPruned, TTMatrix, TuckerMatrix, MonarchMatrix, Blast)
FORMS: dict[str, type[Form]] = {form.kind: form for form in _EACH}
_PARTS = 4  # at most, of a tuple of tensors


def _names(form: type[Form]) -> list[str]:
    names = []
    for leaf in form.leaves:
        names += [f"{leaf}{i}" for i in range(_PARTS)] if leaf == form.many else [leaf]
        if leaf in form.quantisable:
            names += [f"{leaf}_{part}" for part in SqueezeFormat().leaves]
    return names


LEAVES: tuple[str, ...] = tuple(
    dict.fromkeys((*(name for form in FORMS.values() for name in _names(form)), *SparseResidual.leaves))
)


def read_form(module: str, tensors: Mapping[str, torch.Tensor], as_layers: bool = False) -> Form:
    """The form whose tensors these are, by their names. Raises FormatError where there is none."""
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
    raise FormatError(f"{module}: the tensors {', '.join(sorted(present))} make no matrix")


def basis_of(module: str, tensors: Mapping[str, torch.Tensor]) -> str | None:
    """The name of the module that stores the basis of this one, if it is another."""
    leaf = tensors.get("base_of")
    if leaf is None:
        return None
    name = bytes(leaf.tolist()).decode("utf-8", "replace")
    return f"{parent}.{name}" if (parent := module.rpartition(".")[0]) else name


def _complete(form: type[Form], present: set[str]) -> bool:
    return all({leaf, f"{leaf}0", f"{leaf}_codes"} & present for leaf in form.leaves if leaf not in form.optional)


def modules_of(names: Iterable[str]) -> dict[str, list[str]]:
    """Names of tensors that belong to factorised modules: their leaves, by the module's name."""
    leaves: dict[str, list[str]] = {}
    for name in names:
        module, _, leaf = name.rpartition(".")
        if leaf in LEAVES:
            leaves.setdefault(module, []).append(leaf)
    return leaves
