"""A state: the named tensors of a model as words, for the sender as a copy and for the receiver in place."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
import xxhash

from squeeze.checkpoint.checkpoint import TORCH_DTYPES
from squeeze.checkpoint.safetensors import Bytes, layout_of, named
from squeeze.errors import OptionError
from squeeze.packing.coding import Form
from squeeze.packing.deltas import changes
from squeeze.packing.deltas.changes import BLOCK
from squeeze.system.parallel import working

__all__ = ["Array", "State", "Words", "parts", "words_of"]

Array = np.ndarray
_DTYPES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
_WORD = 8
PART = 64 * BLOCK  # words that a thread takes at a time


@dataclass(frozen=True)
class Words:
    """A tensor as 64-bit words, the last filled up with zeros. base: the place of its first word in the state."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int  # bytes of the tensor
    bits: int  # of a value
    base: int
    words: Array

    @property
    def count(self) -> int:
        """The number of values."""
        return 8 * self.size // self.bits

    @property
    def blocks(self) -> int:
        return -(-self.words.size // BLOCK)

    @property
    def data(self) -> Bytes:
        """The bytes of the tensor."""
        return self.words.view(np.uint8)[: self.size]

    def is_like(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor has the same dtype and shape."""
        return _DTYPES.get(tensor.dtype) == self.dtype and tuple(tensor.shape) == self.shape

    @property
    def form(self) -> Form:
        return Form(layout_of(self.dtype), self.shape, self.size)


def words_of(tensor: torch.Tensor) -> Array:
    """Return the words of a tensor, a view if that is possible."""
    flat = tensor.detach().reshape(-1)
    flat = flat if flat.device.type == "cpu" else flat.cpu()
    data = flat.contiguous().view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
    if data.size % _WORD == 0 and data.ctypes.data % _WORD == 0:
        return data.view(np.uint64)
    padded = np.zeros(-(-data.size // _WORD), np.uint64)
    padded.view(np.uint8)[: data.size] = data
    return padded


class State:
    """The tensors of a model, by name in alphabetical order.

    identity: a hash of their names, dtypes and shapes. checksum: the sum of the mixes of all words.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], copy: bool, threads: int = 1):
        """Take the tensors of a model.

        Args:
            tensors: tensors by name, on any device.
            copy: whether to copy those whose words could be a view.
            threads: threads that copy and compute the checksum.

        Raises OptionError for a tensor of a dtype that safetensors does not have.
        """
        self.tensors, base = list[Words](), 1
        for name in sorted(tensors):
            tensor = tensors[name]
            if tensor.dtype not in _DTYPES:
                raise OptionError(f"{named(name)}: expected a dtype of safetensors, got {tensor.dtype}: leave it out")
            words = words_of(tensor)
            words = words.copy() if copy and np.shares_memory(words, _memory(tensor)) else words
            item = tensor.element_size()
            bits = 8 * item if item in (1, 2, 4, 8) else 8
            size = tensor.numel() * item
            self.tensors.append(Words(name, _DTYPES[tensor.dtype], tuple(tensor.shape), size, bits, base, words))
            base += words.size
        described = [[one.name, one.dtype, list(one.shape)] for one in self.tensors]
        self.identity = xxhash.xxh3_64_intdigest(json.dumps(described).encode())
        self.checksum = self.computed_checksum(threads)

    @property
    def size(self) -> int:
        """The bytes of all tensors."""
        return sum(one.size for one in self.tensors)

    def computed_checksum(self, threads: int = 1) -> int:
        """Return the checksum of the words as they are."""
        total = 0
        with working(max(threads, 2)) as waiting:
            for number, first, last in parts(self.tensors):
                one = self.tensors[number]
                waiting.add(changes.checksum, one.words[first:last], one.base + first)
            while waiting:
                total += int(waiting.take())
        return total % (1 << 64)


def _memory(tensor: torch.Tensor) -> Array:
    """Return the memory of a tensor of the CPU as bytes; nothing for another device."""
    if tensor.device.type != "cpu" or not tensor.numel():
        return np.empty(0, np.uint8)
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


def parts(tensors: list[Words]) -> Iterator[tuple[int, int, int]]:
    """Yield the number of a tensor, and first and last word, of each part that a thread takes."""
    for number, one in enumerate(tensors):
        for first in range(0, one.words.size, PART):
            yield number, first, min(first + PART, one.words.size)
