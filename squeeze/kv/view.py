"""What attention sees of a layer: sinks, coded blocks and the residual window as they were at one `update`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from squeeze.kv.base import HeadGroup
from squeeze.kv.store import Fields

__all__ = ["LayerView"]


@dataclass(frozen=True)
class LayerView:
    """Tokens from position `offset` on; those before were dropped or are out of a sliding window's sight.

    sinks, residual: (keys, values), each [B, H, tokens, D]. stores: fields of `blocks` blocks of `block` tokens for
    each group of heads. dropped: tokens before those held. observer: is shown the queries once they have attended.
    """

    sinks: tuple[torch.Tensor, ...]
    stores: list[tuple[HeadGroup, Fields]]
    residual: tuple[torch.Tensor, ...]
    blocks: int
    block: int
    dropped: int
    offset: int
    observer: Callable[[torch.Tensor], None] | None = None

    @property
    def begin(self) -> int:
        """Position of the first coded token."""
        return self.dropped + self.sinks[0].shape[2]

    @property
    def length(self) -> int:
        """Tokens that attention sees."""
        return self.begin + self.blocks * self.block + self.residual[0].shape[2] - self.offset

    def decode(self, first: int, last: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of blocks first to last, [B, H, tokens, D]."""
        start = self.begin + first * self.block
        keys_and_values: list[torch.Tensor] = []
        for kind, like in (("keys", self.residual[0]), ("values", self.residual[1])):
            decoded = []
            for group, fields in self.stores:
                mine = _of(fields, kind, first, last)
                coder = group.keys if kind == "keys" else group.values
                decoded.append((group.heads, coder.decode(mine, start, dtype).flatten(2, 3)))
            if len(decoded) == 1 and decoded[0][0] is None:
                keys_and_values.append(decoded[0][1])
                continue
            joined = like.new_empty((*like.shape[:2], decoded[0][1].shape[2], like.shape[3]), dtype=dtype)
            for heads, states in decoded:
                joined[:, list(heads or range(like.shape[1]))] = states
            keys_and_values.append(joined)
        return keys_and_values[0], keys_and_values[1]

    def pieces(
        self, blocks_at_once: int, dtype: torch.dtype | None = None
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values in the order of tokens, some blocks at a time, [B, H, tokens, D]."""
        dtype = dtype or self.residual[0].dtype
        skip = max(self.offset - self.dropped, 0)
        if skip < self.sinks[0].shape[2]:
            yield self.sinks[0][:, :, skip:].to(dtype), self.sinks[1][:, :, skip:].to(dtype)
        skip = max(skip - self.sinks[0].shape[2], 0)
        first = min(skip // self.block, self.blocks) if self.block else 0
        skip -= first * self.block
        for block in range(first, self.blocks, blocks_at_once):
            keys, values = self.decode(block, min(block + blocks_at_once, self.blocks), dtype)
            yield keys[:, :, skip:], values[:, :, skip:]
            skip = 0
        yield self.residual[0][:, :, skip:].to(dtype), self.residual[1][:, :, skip:].to(dtype)

    def dense(self) -> tuple[torch.Tensor, torch.Tensor]:
        """All of it as tensors, in the model's dtype."""
        if not self.blocks and not self.sinks[0].shape[2] and self.offset == self.dropped:
            return self.residual[0], self.residual[1]
        pieces = list(self.pieces(max(self.blocks, 1)))
        return torch.cat([keys for keys, _ in pieces], 2), torch.cat([values for _, values in pieces], 2)


def _of(fields: Fields, kind: str, first: int, last: int) -> Fields:
    """Fields of the keys or of the values, of blocks first to last."""
    prefix = kind + "."
    return {name.removeprefix(prefix): x[:, :, first:last] for name, x in fields.items() if name.startswith(prefix)}
