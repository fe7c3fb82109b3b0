"""The protocol of stored forms of weights: quantised, sparse, factorised, and differences from a base.

integrations/forms.py has the table of forms.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.errors import FormatError, printable
from squeeze.system.limits import Limits

__all__ = ["Expandable", "Leaves", "Stored", "StoredForm", "dtype_named", "expanded", "named"]

Leaves = Mapping[str, torch.Tensor]  # the tensors of one module, by the last part of their names


class Expandable(Protocol):
    """A weight in another form than dense."""

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (O, I)."""
        ...

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return the dense weight [O, I]."""
        ...


@dataclass(frozen=True)
class Stored:
    """The weights of one checkpoint that are not dense.

    Attributes:
        modules: leaves of each module, by its name.
        dtype: of the dense weights.
        weight: weight(module, tensors) returns the weight [O, I] of a module from its tensors by full name. Raises
            FormatError if they are inconsistent.
    """

    modules: Mapping[str, list[str]]
    dtype: torch.dtype
    weight: Callable[[str, dict[str, torch.Tensor]], Expandable]


class StoredForm(ABC):
    """A form of stored weights, which `squeeze densify` expands and transformers loads as layers that multiply by it.

    Attributes:
        method: the `quant_method` in its folders' `quantization_config`.
        leaves: last parts of its tensors' names.
        mark: the leaf that every module in this form has.
        version: the only `version` of a `quantization_config` that `check` accepts.
        what: what the folders store, in the error for another version.
    """

    method: ClassVar[str]
    leaves: ClassVar[tuple[str, ...]]
    mark: ClassVar[str]
    version: ClassVar[int]
    what: ClassVar[str]

    def check(self, described: Mapping[str, Any]) -> None:
        """Raise FormatError for a `quantization_config` that this version cannot read."""
        if (version := described.get("version")) != self.version:
            raise FormatError(f"unknown version {printable(repr(version))} of {self.what}: use a newer squeeze")

    def described(self, checkpoint: Checkpoint) -> dict[str, Any] | None:
        """Return the `quantization_config` of a folder in this form, which `check` accepts; None for another form."""
        found = checkpoint.config.get("quantization_config")
        if not isinstance(found, dict) or found.get("quant_method") != self.method:
            return None
        self.check(found)
        return found

    @abstractmethod
    def open(self, checkpoint: Checkpoint, base: Path | str | None = None) -> Stored | None:
        """Return the weights of a folder that are in this form, or None.

        `base` is the path of a difference's base, if the caller names it. Raises FormatError for a newer version.
        """

    @abstractmethod
    def weight(self, module: str, leaves: Leaves) -> Expandable:
        """Return the weight of a module. Raises FormatError if its tensors are inconsistent."""

    @abstractmethod
    def layer(self, module: str, shape: tuple[int, int], leaves: Leaves, bias: torch.Tensor | None) -> nn.Module:
        """Return the layer that replaces a linear one.

        Args:
            module: its name.
            shape: (O, I).
            leaves: tensors without values.
            bias: [O], or None.

        Raises:
            FormatError: the tensors are not those of such a layer.
        """

    def embedding(self, module: str, table: nn.Embedding, leaves: Leaves) -> nn.Module | None:
        """Return the embedding that replaces a dense one; None if the form's embeddings are expanded while loading.

        `table` is the dense one, whose tensors may be dropped. Raises FormatError as `layer` does.
        """
        return None

    def tied(self, table: nn.Module, layer: nn.Module) -> nn.Module:
        """Return the layer that replaces a head or an embedding whose weight is tied to an embedding of this form."""
        raise NotImplementedError

    def modules_of(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Return the leaves of each module in this form among the named tensors."""
        leaves_of: dict[str, list[str]] = {}
        for name in names:
            module, _, leaf = name.rpartition(".")
            if leaf in self.leaves:
                leaves_of.setdefault(module, []).append(leaf)
        return {module: leaves for module, leaves in leaves_of.items() if self.mark in leaves}

    def float_type(self, leaves: Leaves, weight: torch.Tensor) -> torch.dtype | None:
        """Return the dtype in which a layer holds its floats instead of that of `weight`; None for the stored one."""
        return None

    def settle(self, model: nn.Module) -> None:  # noqa: B027  most forms leave nothing to do
        """Finish a model once all its layers are in place."""


def expanded(module: str, weight: Expandable, dtype: torch.dtype, limits: Limits | None = None) -> torch.Tensor:
    """Return the dense weight of a module. Raises LimitError if it needs more memory than `limits` allow."""
    (limits or Limits()).need_memory(4 * weight.shape[0] * weight.shape[1], f"{module}: its weight")
    return weight.dequantize(dtype)


def named(module: str, leaves: Leaves) -> dict[str, torch.Tensor]:
    """Return the tensors of a module by full name."""
    return {f"{module}.{leaf}": tensor for leaf, tensor in leaves.items()}


def dtype_named(name: object, default: torch.dtype = torch.bfloat16) -> torch.dtype:
    """Return torch's dtype of a name in a config.json; the default if there is no such dtype."""
    dtype = getattr(torch, str(name).removeprefix("torch."), None)
    return dtype if isinstance(dtype, torch.dtype) else default
