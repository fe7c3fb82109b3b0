"""Bytes held by a cache, and the peak of bytes of live tensors on devices for which torch does not count them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["PeakMemory", "nbytes_of", "tensors_of"]


class PeakMemory(TorchDispatchMode):
    """A context that measures the peak of bytes of the given tensors and of those created within it.

    It is for the CPU, where torch does not count. Memory inside one torch operator is not seen, nor is what is kept by
    tensors that existed before and were not given.
    """

    def __init__(self, tensors: Iterator[torch.Tensor] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.current = self.peak = 0
        self._live: dict[int, tuple[int, int]] = {}  # address of a storage: tensors that use it, its bytes
        for tensor in tensors or ():
            self._note(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                address = tensor.untyped_storage().data_ptr()
                if address in self._live or address not in inputs:
                    self._note(tensor)
        return result

    def _note(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if not address:
            return
        users, size = self._live.get(address, (0, storage.nbytes()))
        if not users:
            self.current += size
            self.peak = max(self.peak, self.current)
        self._live[address] = users + 1, size
        weakref.finalize(tensor, self._remove, address)

    def _remove(self, address: int) -> None:
        users, size = self._live[address]
        if users == 1:
            self.current -= size
            del self._live[address]
        else:
            self._live[address] = users - 1, size


def nbytes_of(cache: Any) -> int:
    """Return the bytes of all tensors in the layers of any cache, counting each storage once."""
    if hasattr(cache, "nbytes"):
        return int(cache.nbytes)
    return sum({x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors_of(cache)}.values())


def tensors_of(cache: Any) -> Iterator[torch.Tensor]:
    """Return the tensors of keys and values, coded or not, of any cache."""
    for layer in cache.layers:
        yield from _tensors(vars(layer), 0)


_NOT_STATES = ("policy", "head_groups", "groups", "native", "config")


def _tensors(value: Any, depth: int) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor) and type(value) is torch.Tensor:
        yield value
    elif isinstance(value, torch.Tensor) or (hasattr(value, "__dict__") and depth < 12 and not callable(value)):
        yield from _tensors(vars(value), depth + 1)
    elif isinstance(value, dict):
        yield from _tensors([x for name, x in value.items() if name not in _NOT_STATES], depth + 1)
    elif isinstance(value, list | tuple) and depth < 16:
        for item in value:
            yield from _tensors(item, depth + 1)
