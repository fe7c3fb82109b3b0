"""Tensors of a checkpoint that no file holds as they are: made of what is stored whenever they are loaded."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch

from squeeze.checkpoint.safetensors import ELEMENT_BITS, Tensor

__all__ = ["DTYPES", "View"]

DTYPES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}


@dataclass(frozen=True)
class View:
    """What stands in the place of a file for one tensor. dtype: as safetensors names it. read(index): its values, or
    with an index those of this entry of its first dimension, without the others in memory."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    read: Callable[[int | None], torch.Tensor]

    @cached_property
    def by_name(self) -> dict[str, Tensor]:
        size = prod(self.shape) * ELEMENT_BITS[self.dtype] // 8
        return {self.name: Tensor(self.name, self.dtype, self.shape, 0, size)}
