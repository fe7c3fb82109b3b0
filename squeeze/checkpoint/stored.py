"""What a checkpoint stores in place of dense weights: the protocol of all forms, quantised, sparse and factorised.

Which forms there are is integrations/forms.py's.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.system.limits import Limits

__all__ = ["Expandable", "Leaves", "Stored", "StoredForm", "dtype_named", "expanded", "named"]

Leaves = Mapping[str, torch.Tensor]  # the tensors of one module, by the last part of their names


class Expandable(Protocol):
    @property
    def shape(self) -> tuple[int, int]:
        """(O, I)."""
        ...

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The dense weight [O, I]."""
        ...


@dataclass(frozen=True)
class Stored:
    """The weights of one checkpoint that are not dense. modules: by name, the last parts of their tensors' names;
    dtype: of the dense weights; weight(module, tensors): the weight [O, I] of a module, by its tensors' whole names,
    FormatError where they contradict each other."""

    modules: Mapping[str, list[str]]
    dtype: torch.dtype
    weight: Callable[[str, dict[str, torch.Tensor]], Expandable]


class StoredForm(ABC):
    """A form of stored weights, which `squeeze densify` expands and transformers loads as layers that multiply by it.

    method: the `quant_method` of its folders' `quantization_config`. leaves: last parts of its tensors' names; mark:
    the leaf that every module in this form has.
    """

    method: ClassVar[str]
    leaves: ClassVar[tuple[str, ...]]
    mark: ClassVar[str]

    @abstractmethod
    def check(self, described: Mapping[str, Any]) -> None:
        """Raises FormatError for a `quantization_config` that this version cannot read."""

    @abstractmethod
    def open(self, checkpoint: Checkpoint, base: Path | str | None = None) -> Stored | None:
        """Return the weights of a folder that are in this form; None if there are none. base: where the caller says
        that the base of a difference is. Raises FormatError for a newer version."""

    @abstractmethod
    def weight(self, module: str, leaves: Leaves) -> Expandable:
        """The weight of a module. Raises FormatError where its tensors contradict each other."""

    @abstractmethod
    def layer(self, module: str, shape: tuple[int, int], leaves: Leaves, bias: torch.Tensor | None) -> nn.Module:
        """The layer that takes the place of a linear one of `shape` (O, I). leaves: tensors without values. Raises
        FormatError where these are not of such a layer."""

    def modules_of(self, names: Iterable[str]) -> dict[str, list[str]]:
        """By module in this form, its leaves among the tensors named."""
        leaves_of: dict[str, list[str]] = {}
        for name in names:
            module, _, leaf = name.rpartition(".")
            if leaf in self.leaves:
                leaves_of.setdefault(module, []).append(leaf)
        return {module: leaves for module, leaves in leaves_of.items() if self.mark in leaves}

    def float_type(self, leaves: Leaves, weight: torch.Tensor) -> torch.dtype | None:
        """The type that a layer holds its floats in, in place of `weight`; None for the stored one."""
        return None

    def settle(self, model: nn.Module) -> None:  # noqa: B027  most forms leave nothing to do
        """What is left to do once all layers of a model are in place."""


def expanded(module: str, weight: Expandable, dtype: torch.dtype, limits: Limits | None = None) -> torch.Tensor:
    """The dense weight of a module. Raises LimitError where it takes more memory than may be."""
    (limits or Limits()).need_memory(4 * weight.shape[0] * weight.shape[1], f"{module}: its weight")
    return weight.dequantize(dtype)


def named(module: str, leaves: Leaves) -> dict[str, torch.Tensor]:
    """Tensors of a module by their whole names."""
    return {f"{module}.{leaf}": tensor for leaf, tensor in leaves.items()}


def dtype_named(name: object, default: torch.dtype = torch.bfloat16) -> torch.dtype:
    """torch's dtype of a name in a config.json; the default where there is none."""
    dtype = getattr(torch, str(name).removeprefix("torch."), None)
    return dtype if isinstance(dtype, torch.dtype) else default
