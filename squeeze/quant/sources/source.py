"""What every reader of a quantised checkpoint makes: views of floats, by name, of tensors that are stored otherwise."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from squeeze.checkpoint.checkpoint import DTYPES, Checkpoint, View
from squeeze.checkpoint.pretrained import explained
from squeeze.checkpoint.stored import dtype_named
from squeeze.errors import FormatError, printable

__all__ = ["Read", "Reader", "Source"]

Read = Callable[[Mapping[str, torch.Tensor]], torch.Tensor]  # tensors, by the names that were asked for


@dataclass
class Source:
    """A checkpoint and what stands for others of its tensors. views: by name; used: names of tensors that these are
    made of."""

    checkpoint: Checkpoint
    views: dict[str, View] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    @property
    def dtype(self) -> torch.dtype:
        """Of the floats."""
        config = self.checkpoint.config
        named = dtype_named(config.get("dtype") or config.get("torch_dtype"))
        return named if named in DTYPES else torch.bfloat16

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a stored tensor. Raises FormatError where it is missing."""
        if name not in self.checkpoint.files:
            raise FormatError(f"{self.checkpoint.folder}: tensor {printable(repr(name))} is missing")
        return self.checkpoint.info(name).shape

    def put(self, name: str, shape: Iterable[int], parts: Iterable[str], read: Read) -> None:
        """Let a tensor be made of others, of all or of their entry of the first dimension."""
        names = tuple(parts)
        for part in names:
            self.shape(part)
        checkpoint, dtype = self.checkpoint, self.dtype
        sizes = tuple(shape)

        def made(index: int | None) -> torch.Tensor:
            if index is None:
                tensors = checkpoint.load(names, strict=False)
            else:
                tensors = {part: checkpoint.entry(part, index) for part in names}
            with explained(checkpoint.folder, OSError):
                values = read(tensors).to(dtype)
            if tuple(values.shape) != (sizes if index is None else sizes[1:]):
                raise FormatError(
                    f"{checkpoint.folder}: tensor {printable(repr(name))} has shape {list(values.shape)}, "
                    f"and its parts were to make it {list(sizes)}"
                )
            return values

        self.views[name] = View(name, DTYPES[dtype], sizes, made)
        self.used |= set(names)


class Reader(Protocol):
    def __call__(self, source: Source, described: Mapping[str, Any]) -> None:
        """Put every tensor that a `quantization_config` speaks of. Raises FormatError where one is missing, or they
        contradict each other."""
