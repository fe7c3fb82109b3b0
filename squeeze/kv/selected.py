"""Tokens of a prompt that the heads of a layer chose, each head a number of its own; they are coded once and stay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from squeeze.kv.base import HeadGroup
from squeeze.kv.store import BlockStore, Fields

__all__ = ["KeptCoder", "Selected"]


@dataclass(frozen=True)
class KeptCoder:
    """Tokens as they are, for policies that code nothing."""

    def encode(self, blocks: torch.Tensor, start: int) -> Fields:
        return {"states": blocks.contiguous()}

    def decode(self, fields: Fields, start: int, dtype: torch.dtype) -> torch.Tensor:
        return fields["states"].to(dtype)

    def bits(self, block: int, size: int) -> float:
        return 16.0


class Selected:
    """groups: those of a layer's policy. heads: of the layer. block: tokens coded at once; 0 codes nothing.

    Fields of a head are [B, 1, blocks, ...], and a head may have none.
    """

    def __init__(self, groups: Sequence[HeadGroup], heads: int, block: int) -> None:
        self.block = block or 1
        self.groups = [_of_head(groups, head) for head in range(heads)]
        self.stores = [BlockStore() for _ in self.groups]

    @property
    def tokens(self) -> int:
        """Of the head that has most."""
        return max((store.blocks for store in self.stores), default=0) * self.block

    @property
    def total(self) -> int:
        """Of all heads."""
        return sum(store.blocks for store in self.stores) * self.block

    def fill(self, states: Iterable[Sequence[torch.Tensor]], start: int) -> None:
        """Code keys and values [B, 1, tokens, D] of each head; the first of them stands at position `start`."""
        for group, store, pair in zip(self.groups, self.stores, states, strict=True):
            coded: Fields = {}
            for kind, coder, x in zip(("keys", "values"), (group.keys, group.values), pair, strict=True):
                fields = coder.encode(x.detach().unflatten(2, (-1, self.block)), start) if x.shape[2] else {}
                coded |= {f"{kind}.{name}": field for name, field in fields.items()}
            if coded:
                store.fill(coded)

    def read(self) -> list[tuple[HeadGroup, Fields]]:
        """Of the heads that chose any."""
        return [(group, store.read()) for group, store in zip(self.groups, self.stores, strict=True) if store.blocks]


def _of_head(groups: Sequence[HeadGroup], head: int) -> HeadGroup:
    for group in groups:
        if group.heads is None or head in group.heads:
            return HeadGroup(group.keys, group.values, (head,))
    return HeadGroup(KeptCoder(), KeptCoder(), (head,))
