"""Edits of a checkpoint before compression: tensors that are replaced, and methods for their modules."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from squeeze.checkpoint.checkpoint import DTYPES, Checkpoint
from squeeze.engine.expert_names import is_expert
from squeeze.engine.method import Method, Result
from squeeze.engine.network import Network
from squeeze.factor.curvature import on_disk
from squeeze.factor.modegpt import EditedCheckpoint, RowColumnPruning

__all__ = ["Edits", "WithNote"]

_TYPES = {name: dtype for dtype, name in DTYPES.items()}


@dataclass(frozen=True)
class WithNote:
    """A method that adds a note to each of its results."""

    method: Method
    note: str

    @property
    def name(self) -> str:
        return self.method.name

    @property
    def needs_hessian(self) -> bool:
        return self.method.needs_hessian

    def compress(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> Result[Any]:
        """Compress a weight as the inner method does, with the note added."""
        result = self.method.compress(weight, hessian)
        return replace(result, notes=(self.note, *result.notes))

    def fallback(self) -> "WithNote":
        return WithNote(self.method.fallback(), self.note)


@dataclass
class Edits:
    """Replaced tensors, by the checkpoint's name and held in files, and methods by the checkpoint's module name."""

    network: Network
    methods: dict[str, Any] = field(default_factory=dict)
    replaced: dict[str, torch.Tensor] = field(default_factory=dict)

    def put(self, parent: str, tensors: Mapping[str, torch.Tensor], note: str | None = None) -> None:
        """Replace tensors of a module; its matrices are then stored without rows and columns of zeros."""
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
        """Return the checkpoint with its tensors replaced."""
        return EditedCheckpoint(checkpoint.folder, checkpoint.files, self.replaced) if self.replaced else checkpoint
