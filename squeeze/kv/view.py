"""What attention sees of a layer: sinks, coded blocks and the residual window as they were at one `update`.

Where heads chose tokens of a prompt, each a number of its own, those stand after the sinks: heads with fewer are absent
from the last places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from squeeze.kv.base import HeadGroup
from squeeze.kv.store import Fields

__all__ = ["LayerView"]


@dataclass(frozen=True)
class LayerView:
    """Tokens from position `offset` on; those before were dropped or are out of a sliding window's sight.

    sinks, residual: (keys, values), each [B, H, tokens, D]. stores: fields of `blocks` blocks of `block` tokens for
    each group of heads, where there are any. dropped: tokens before those held. observer: is shown the queries once
    they have attended, times what makes 1 / sqrt(D) the scale of their scores. selected: fields of the tokens that a
    head chose, in blocks of `selected_block`, of each head that chose any.
    """

    sinks: tuple[torch.Tensor, ...]
    stores: list[tuple[HeadGroup, Fields]]
    residual: tuple[torch.Tensor, ...]
    blocks: int
    block: int
    dropped: int
    offset: int
    observer: Callable[[torch.Tensor], None] | None = None
    selected: list[tuple[HeadGroup, Fields]] = field(default_factory=list)

    @property
    def selected_block(self) -> int:
        return self.block or 1

    @property
    def selected_tokens(self) -> int:
        """Of the head that chose most."""
        return max((_blocks(fields) for _, fields in self.selected), default=0) * self.selected_block

    @property
    def first(self) -> int:
        """Position of the first token after the sinks."""
        return self.dropped + self.sinks[0].shape[2]

    @property
    def begin(self) -> int:
        """Position of the first token of the blocks that all heads have."""
        return self.first + self.selected_tokens

    @property
    def is_coded(self) -> bool:
        """Whether it is more than sinks and residual window."""
        return bool(self.blocks or self.selected)

    @property
    def length(self) -> int:
        """Tokens that attention sees, by the head that has most."""
        return self.begin + self.blocks * self.block + self.residual[0].shape[2] - self.offset

    @property
    def absent(self) -> torch.Tensor | None:
        """Where a head has no token, bool [H, length]; None where all have as many."""
        if not self.selected:
            return None
        end = self.first - self.offset
        absent = torch.zeros(self.residual[0].shape[1], self.length, dtype=torch.bool, device=self.residual[0].device)
        absent[:, end : end + self.selected_tokens] = True
        for group, fields in self.selected:
            for head in group.heads or ():
                absent[head, end : end + _blocks(fields) * self.selected_block] = False
        return absent

    def decode(self, first: int, last: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of blocks first to last, [B, H, tokens, D]."""
        tokens = (last - first) * self.block
        return self._decoded(self.stores, first, last, self.begin + first * self.block, tokens, dtype)

    def _decoded(
        self,
        stores: list[tuple[HeadGroup, Fields]],
        first: int,
        last: int,
        start: int,
        tokens: int,
        dtype: torch.dtype,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [B, H, tokens, D] of blocks first to last, which stand at position `start`; zeros where a
        head has fewer."""
        keys_and_values: list[torch.Tensor] = []
        for kind, like in (("keys", self.residual[0]), ("values", self.residual[1])):
            decoded = []
            for group, fields in stores:
                mine = _fields_of(fields, kind, first, last)
                coder = group.keys if kind == "keys" else group.values
                if _blocks(mine):
                    decoded.append((group.heads, coder.decode(mine, start, dtype).flatten(2, 3)))
            if len(decoded) == 1 and decoded[0][0] is None:
                keys_and_values.append(decoded[0][1])
                continue
            joined = like.new_zeros((*like.shape[:2], tokens, like.shape[3]), dtype=dtype)
            for heads, states in decoded:
                for place, head in enumerate(heads or range(like.shape[1])):  # by a list, a copy to the device
                    joined[:, head, : states.shape[2]] = states[:, place]
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
        if skip < self.selected_tokens:
            yield from self._selected_pieces(blocks_at_once, dtype)
        skip = max(skip - self.selected_tokens, 0)
        first = min(skip // self.block, self.blocks) if self.block else 0
        skip -= first * self.block
        for block in range(first, self.blocks, blocks_at_once):
            keys, values = self.decode(block, min(block + blocks_at_once, self.blocks), dtype)
            yield keys[:, :, skip:], values[:, :, skip:]
            skip = 0
        yield self.residual[0][:, :, skip:].to(dtype), self.residual[1][:, :, skip:].to(dtype)

    def _selected_pieces(self, blocks_at_once: int, dtype: torch.dtype) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        size, blocks = self.selected_block, self.selected_tokens // self.selected_block
        for first in range(0, blocks, blocks_at_once):
            last = min(first + blocks_at_once, blocks)
            start, tokens = self.first + first * size, (last - first) * size
            yield self._decoded(self.selected, first, last, start, tokens, dtype)

    def dense(self) -> tuple[torch.Tensor, torch.Tensor]:
        """All of it as tensors, in the model's dtype; zeros where a head is absent."""
        if not self.is_coded and not self.sinks[0].shape[2] and self.offset == self.dropped:
            return self.residual[0], self.residual[1]
        pieces = list(self.pieces(max(self.blocks, self.selected_tokens // self.selected_block, 1)))
        return torch.cat([keys for keys, _ in pieces], 2), torch.cat([values for _, values in pieces], 2)


def _blocks(fields: Fields) -> int:
    return next((x.shape[2] for x in fields.values()), 0)


def _fields_of(fields: Fields, kind: str, first: int = 0, last: int | None = None) -> Fields:
    """Fields of the "keys" or of the "values", of blocks first to last, as their coder takes them."""
    prefix = kind + "."
    return {name.removeprefix(prefix): x[:, :, first:last] for name, x in fields.items() if name.startswith(prefix)}
