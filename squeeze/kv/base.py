"""What a policy is, and what a coder is: the contract between a cache's layers and the methods that shrink them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from squeeze.kv.store import Fields

__all__ = ["Coder", "HeadGroup", "Policy"]


class Coder(Protocol):
    """Codes blocks of keys or of values. Frozen, pure, and equal to another one of the same parameters."""

    def encode(self, blocks: torch.Tensor, start: int) -> Fields:
        """[B, H, n, T, D] in any float dtype to fields [B, H, n, ...]; the first token stands at position `start`."""

    def decode(self, fields: Fields, start: int, dtype: torch.dtype) -> torch.Tensor:
        """What `encode` kept, [B, H, n, T, D]."""

    def bits(self, block: int, size: int) -> float:
        """Bits a value of blocks of `block` tokens and `size` channels, scales and all else included."""


@dataclass(frozen=True)
class HeadGroup:
    """Heads of a layer that are coded alike; all of them where `heads` is None."""

    keys: Coder
    values: Coder
    heads: tuple[int, ...] | None = None


class Policy(Protocol):
    """A frozen dataclass: which coder for which layer and head, and what stays in the model's dtype.

    sinks: first tokens that stay. window: latest tokens that stay, the residual window, at least; a block more at
    most. block: tokens coded at a time; 0 codes nothing.
    """

    @property
    def sinks(self) -> int: ...

    @property
    def window(self) -> int: ...

    @property
    def block(self) -> int: ...

    def head_groups(self, layer: int, heads: int) -> list[HeadGroup]:
        """How layer number `layer` of `heads` KV heads is coded. Raises PolicyError where it cannot be."""
