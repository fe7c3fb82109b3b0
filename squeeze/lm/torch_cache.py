"""Keys and values of lanes on torch's tensors: int8 in rings, for all layers."""

from typing import NamedTuple

import torch
from torch import Tensor

from squeeze.lm.config import Config
from squeeze.lm.fused.attention import BLOCK, Kept


class Cache(NamedTuple):
    """Keys (0) and values (1) of some lanes, quantised when they are written and never touched again."""

    integers: Tensor  # int8 [layers, 2, lanes, kv heads, slots, head size]
    scales: Tensor  # float32 [layers, 2, lanes, kv heads, slots]

    @classmethod
    def zeros(cls, config: Config, lanes: int, ring: int, device: str) -> "Cache":
        """For so many blocks in the ring beside the first block, which stays."""
        shape = (config.layers, 2, lanes, config.kv_heads, BLOCK * (1 + ring))
        integers = torch.zeros((*shape, config.head_size), dtype=torch.int8, device=device)
        return cls(integers, torch.zeros(shape, dtype=torch.float32, device=device))

    def layer(self, number: int) -> Kept:
        """In the same memory."""
        return Kept(self.integers[number], self.scales[number])

    def lanes(self, begin: int, end: int) -> "Cache":
        """Of these lanes, in the same memory."""
        return Cache(*(tensor[:, :, begin:end] for tensor in self))

    def moved(self, device: str) -> "Cache":
        """A copy on another device."""
        return Cache(*(tensor.to(device, copy=True) for tensor in self))

    def take(self, other: "Cache") -> None:
        """Become equal to `other`, wherever that lies."""
        for mine, theirs in zip(self, other, strict=True):
            mine.copy_(theirs)
