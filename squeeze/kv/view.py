"""What attention sees of a layer: sinks, coded blocks and recent tokens as they were at one `update`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from squeeze.kv.base import Part
from squeeze.kv.store import Fields

__all__ = ["View"]


@dataclass(frozen=True)
class View:
    """Tokens from position `offset` on; those before were dropped or are out of a sliding window's sight.

    first, recent: (keys, values), each [B, H, tokens, D]. stores: fields of `blocks` blocks of `block` tokens for
    each part of the heads. dropped: tokens before those held. observer: is shown the queries once they have attended.
    """

    first: tuple[torch.Tensor, ...]
    stores: list[tuple[Part, Fields]]
    recent: tuple[torch.Tensor, ...]
    blocks: int
    block: int
    dropped: int
    offset: int
    observer: Callable[[torch.Tensor], None] | None = None

    @property
    def begin(self) -> int:
        """Position of the first coded token."""
        return self.dropped + self.first[0].shape[2]

    @property
    def length(self) -> int:
        """Tokens that attention sees."""
        return self.begin + self.blocks * self.block + self.recent[0].shape[2] - self.offset

    def decode(self, first: int, last: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of blocks first to last, [B, H, tokens, D]."""
        start = self.begin + first * self.block
        heads = self.recent[0].shape[1]
        found: list[torch.Tensor] = []
        for kind, like in (("keys", self.recent[0]), ("values", self.recent[1])):
            decoded = []
            for part, fields in self.stores:
                mine = {
                    name.removeprefix(kind + "."): field[:, :, first:last]
                    for name, field in fields.items()
                    if name.startswith(kind + ".")
                }
                coder = part.keys if kind == "keys" else part.values
                decoded.append((part.heads, coder.decode(mine, start, dtype).flatten(2, 3)))
            if len(decoded) == 1 and decoded[0][0] is None:
                found.append(decoded[0][1])
                continue
            whole = like.new_empty((like.shape[0], heads, decoded[0][1].shape[2], like.shape[3]), dtype=dtype)
            for part_heads, values in decoded:
                whole[:, list(part_heads or range(heads))] = values
            found.append(whole)
        return found[0], found[1]

    def pieces(
        self, blocks_at_once: int, dtype: torch.dtype | None = None
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values in the order of tokens, some blocks at a time, [B, H, tokens, D]."""
        dtype = dtype or self.recent[0].dtype
        skip = max(self.offset - self.dropped, 0)
        if skip < self.first[0].shape[2]:
            yield self.first[0][:, :, skip:].to(dtype), self.first[1][:, :, skip:].to(dtype)
        skip = max(skip - self.first[0].shape[2], 0)
        first = min(skip // self.block, self.blocks) if self.block else 0
        skip -= first * self.block
        for at in range(first, self.blocks, blocks_at_once):
            keys, values = self.decode(at, min(at + blocks_at_once, self.blocks), dtype)
            yield keys[:, :, skip:], values[:, :, skip:]
            skip = 0
        yield self.recent[0][:, :, skip:].to(dtype), self.recent[1][:, :, skip:].to(dtype)

    def dense(self) -> tuple[torch.Tensor, torch.Tensor]:
        """All of it as tensors, in the model's dtype."""
        if not self.blocks and not self.first[0].shape[2] and self.offset == self.dropped:
            return self.recent[0], self.recent[1]
        pieces = list(self.pieces(max(self.blocks, 1)))
        return torch.cat([keys for keys, _ in pieces], 2), torch.cat([values for _, values in pieces], 2)
