"""Tensors of a checkpoint that others take the place of before it is compressed, and how their modules are stored."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from squeeze.checkpoint.checkpoint import DTYPES, Checkpoint
from squeeze.engine.experts import is_expert
from squeeze.engine.method import Method, Result
from squeeze.engine.network import Network
from squeeze.factor.curvature import on_disk
from squeeze.factor.modegpt import EditedCheckpoint, RowColumnPruning

__all__ = ["Edits", "WithNote"]

_TYPES = {name: dtype for dtype, name in DTYPES.items()}


@dataclass(frozen=True)
class WithNote:
    """Another method, with something that the report is to say of what it makes."""

    method: Method
    note: str

    @property
    def name(self) -> str:
        return self.method.name

    @property
    def needs_hessian(self) -> bool:
        return self.method.needs_hessian

    def compress(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> Result[Any]:
        """As Method.compress."""
        result = self.method.compress(weight, hessian)
        return replace(result, notes=(self.note, *result.notes))

    def fallback(self) -> "WithNote":
        return WithNote(self.method.fallback(), self.note)


@dataclass
class Edits:
    """methods: by the checkpoint's name of a module; replaced: tensors by their names in the checkpoint, which lie in
    files."""

    network: Network
    methods: dict[str, Any] = field(default_factory=dict)
    replaced: dict[str, torch.Tensor] = field(default_factory=dict)

    def put(self, parent: str, tensors: Mapping[str, torch.Tensor], note: str | None = None) -> None:
        """Replace tensors by their names below a module; matrices are then stored without rows and columns of 0."""
        checkpoint, changed = self.network.checkpoint, dict[str, torch.Tensor]()
        for leaf, tensor in tensors.items():
            name = f"{parent}.{leaf}"
            source = self.network.sources[name]
            module = name.rpartition(".")[0]
            dtype = _TYPES[checkpoint.info(source).dtype]
            if leaf.endswith(".weight"):
                slicing: Any = RowColumnPruning(always=is_expert(module))
                self.methods[self.network.stored_name(module)] = WithNote(slicing, note) if note else slicing
            changed[source] = tensor.to(dtype).contiguous()
        self.replaced |= on_disk(changed)

    def applied(self, checkpoint: Checkpoint) -> Checkpoint:
        """The checkpoint with what has been replaced."""
        return EditedCheckpoint(checkpoint.folder, checkpoint.files, self.replaced) if self.replaced else checkpoint
