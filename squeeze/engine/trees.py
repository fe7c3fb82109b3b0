"""Nested containers of tensors, such as the arguments of a block and its results: values by their paths."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["OUT", "Part", "Path", "Slot", "at", "copied", "filled", "leaves", "new_entries", "templated", "with_parts"]

Path = tuple[Any, ...]  # keys and indices that lead to a value in nested containers
OUT = "out"  # the first key of the path to a value that a block returns


@dataclass(frozen=True)
class Slot:
    """A placeholder for part `number` of a state."""

    number: int


@dataclass(frozen=True)
class Part:
    """A placeholder for a tensor of this shape and dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Part":
        return cls(tuple(tensor.shape), tensor.dtype)

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def leaves(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield every value in nested containers that is not a container, with its path."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from leaves(value, (*path, key))
    elif isinstance(tree, list | tuple):
        for number, value in enumerate(tree):
            yield from leaves(value, (*path, number))
    else:
        yield path, tree


def at(tree: Any, path: Path) -> Any:
    """Return the value at a path."""
    for step in path:
        tree = tree[step]
    return tree


def copied(tree: Any, change: Callable[[Path, Any], Any] = lambda path, leaf: leaf, path: Path = ()) -> Any:
    """Return new containers of the same kind, with change(path, value) for every value."""
    if isinstance(tree, Mapping):
        made = {key: copied(value, change, (*path, key)) for key, value in tree.items()}
        return made if type(tree) is dict else type(tree)(made)  # type: ignore[call-arg]
    if isinstance(tree, list | tuple):
        items = [copied(value, change, (*path, number)) for number, value in enumerate(tree)]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    return change(path, tree)


def with_parts(tree: Any) -> Any:
    """Return the containers with a Part for every tensor."""
    return copied(tree, lambda path, leaf: Part.of(leaf) if isinstance(leaf, torch.Tensor) else leaf)


def templated(tree: Any, places: Mapping[Path, Any], path: Path) -> Any:
    """Return the containers with the values of `places` at their paths; the tree itself is at `path`."""
    return copied(tree, places.get, path)


def filled(template: Any, values: Sequence[torch.Tensor]) -> Any:
    """Return the containers with tensors for Slots, and zeros for Parts."""

    def change(path: Path, leaf: Any) -> Any:
        if isinstance(leaf, Slot):
            return values[leaf.number]
        return torch.zeros(leaf.shape, dtype=leaf.dtype, device=values[0].device) if isinstance(leaf, Part) else leaf

    return copied(template, change)


def new_entries(before: Any, after: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield what was added to containers; `before` is an earlier copy."""
    if isinstance(after, Mapping) and isinstance(before, Mapping):
        entries = [(key, before.get(key, ...), value) for key, value in after.items()]
    elif isinstance(after, list | tuple) and isinstance(before, list | tuple):
        entries = [(n, before[n] if n < len(before) else ..., value) for n, value in enumerate(after)]
    else:
        return
    for key, old, value in entries:
        if isinstance(value, Mapping | list | tuple) and type(value) is type(old):
            yield from new_entries(old, value, (*path, key))
        elif value is not old:
            yield (*path, key), value
