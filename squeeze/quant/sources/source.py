"""The views of floats that readers of quantised checkpoints put in place of stored tensors."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from squeeze.checkpoint.checkpoint import DTYPES, Checkpoint, View
from squeeze.checkpoint.pretrained import explained
from squeeze.checkpoint.stored import dtype_named
from squeeze.errors import FormatError, printable

__all__ = ["Read", "Reader", "Source"]

Read = Callable[[Mapping[str, torch.Tensor]], torch.Tensor]  # of stored tensors by name


@dataclass
class Source:
    """A checkpoint, and views that replace some of its tensors.

    Attributes:
        checkpoint: the quantised checkpoint.
        views: views by name.
        source_names: names of the tensors that views are made of.
    """

    checkpoint: Checkpoint
    views: dict[str, View] = field(default_factory=dict)
    source_names: set[str] = field(default_factory=set)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the floats."""
        config = self.checkpoint.config
        named = dtype_named(config.get("dtype") or config.get("torch_dtype"))
        return named if named in DTYPES else torch.bfloat16

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a stored tensor. Raises FormatError if it is missing."""
        if name not in self.checkpoint.files:
            raise FormatError(f"{self.checkpoint.folder}: tensor {printable(repr(name))} is missing")
        return self.checkpoint.info(name).shape

    def add_view(self, name: str, shape: Iterable[int], parts: Iterable[str], convert: Read) -> None:
        """Add a view of a tensor that is made of stored tensors, whole or one entry of the first dimension at a time.

        Args:
            name: of the view.
            shape: of the view.
            parts: names of the stored tensors.
            convert: makes the tensor of the stored ones.
        """
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
                values = convert(tensors).to(dtype)
            if tuple(values.shape) != (sizes if index is None else sizes[1:]):
                raise FormatError(
                    f"{checkpoint.folder}: tensor {printable(repr(name))}: expected shape {list(sizes)} from "
                    f"its description, got {list(values.shape)}"
                )
            return values

        self.views[name] = View(name, DTYPES[dtype], sizes, made)
        self.source_names |= set(names)


class Reader(Protocol):
    """A function that replaces the quantised tensors of a source with views."""

    def __call__(self, source: Source, described: Mapping[str, Any]) -> None:
        """Put a view for every tensor of a `quantization_config`. Raises FormatError if tensors are missing or
        inconsistent."""
