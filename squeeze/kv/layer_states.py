"""The states that a layer of the cache holds, and operations on them: batch rows, devices, bytes, and eviction.

layer.py decides how tokens get there, and the policy decides which of them stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from squeeze.kv.base import HeadGroup, Policy
from squeeze.kv.contract import CacheLayerMixin
from squeeze.kv.store import BlockStore, Fields

__all__ = ["HeldStates", "KeptCoder", "Selected", "joined"]


class HeldStates(CacheLayerMixin):
    """A layer's sinks, the tokens that heads chose of a prompt, coded blocks, and residual window, in this order."""

    policy: Policy
    index: int
    is_sliding: bool
    device: torch.device

    def _clear(self) -> None:
        self.head_groups: list[HeadGroup] = []
        self.stores: list[BlockStore] = []
        self.selected = Selected((), 0, self.policy.block)
        self.sinks: tuple[torch.Tensor, ...] = ()  # keys and values, as the model gave them
        self.residual: tuple[torch.Tensor, ...] = ()  # keys and values of the latest tokens
        self.dropped = 0  # tokens that left a sliding window
        self.evicted = 0  # tokens that the policy evicted
        self.coded_tokens = 0  # tokens coded so far, including evicted ones
        self.is_unseen = False  # whether the policy still waits for the queries of a prompt

    @property
    def blocks(self) -> int:
        """The number of blocks that all heads have."""
        return self.stores[0].blocks if self.stores else 0

    @property
    def stored(self) -> int:
        """The number of tokens of the head that holds most."""
        return self._common + self.selected.tokens

    @property
    def _common(self) -> int:
        """The number of tokens that all heads hold."""
        if not self.is_initialized:
            return 0
        return self.sinks[0].shape[2] + self.blocks * self.policy.block + self.residual[0].shape[2]

    @property
    def _begin(self) -> int:
        """The position of the first block that all heads have."""
        return self.dropped + self.evicted + self.sinks[0].shape[2] + self.selected.tokens

    @property
    def choosable(self) -> int:
        return self.residual[0].shape[2] - self.policy.window

    def keep(self, tokens: torch.Tensor) -> None:
        old = self.choosable
        self.evicted += old - tokens.shape[2]
        self.residual = joined(_at(self.residual, tokens), tuple(x[:, :, old:] for x in self.residual))

    def keep_exact(self, tokens: torch.Tensor) -> None:
        old, chosen = self.choosable, _at(self.residual, tokens)
        others = torch.ones_like(self.residual[0][..., :old, 0], dtype=torch.bool).scatter_(2, tokens, False)
        others_at = others.nonzero()[:, 2].view(*tokens.shape[:2], -1)
        self.sinks = joined(self.sinks, chosen)
        self.residual = joined(_at(self.residual, others_at), tuple(x[:, :, old:] for x in self.residual))

    def keep_by_heads(self, tokens: list[torch.Tensor]) -> None:
        old = self.choosable
        start = self.dropped + self.evicted + self.sinks[0].shape[2]
        pairs = (
            [x[:, head : head + 1].take_along_dim(chosen[:, None, :, None], 2) for x in self.residual]
            for head, chosen in enumerate(tokens)
        )
        self.selected.fill(pairs, start + old - max(chosen.shape[1] for chosen in tokens))
        self.evicted += old - self.selected.tokens
        self.coded_tokens += self.selected.tokens if self.policy.block else 0
        self.residual = tuple(x[:, :, old:].clone() for x in self.residual)

    def keep_latest(self, limit: int) -> None:
        block = self.policy.block
        if self.is_sliding:
            return
        if block:
            blocks = max(self.blocks - -(-limit // block), 0)
            for store in self.stores:
                store.drop(blocks)
            self.evicted += blocks * block
        elif (beyond := self.choosable - limit) > 0:
            self.residual = tuple(x[:, :, beyond:].clone() for x in self.residual)
            self.evicted += beyond

    @property
    def full_precision_nbytes(self) -> int:
        """The bytes that the tokens held would take in the model's dtype."""
        if not self.is_initialized:
            return 0
        held = self.residual[0].shape[1] * self._common + self.selected.total
        return held * sum(x.shape[0] * x.shape[3] * x.element_size() for x in self.residual)

    def _stores(self) -> list[BlockStore]:
        return [*self.selected.stores, *self.stores]

    def _select(self, indices: torch.Tensor) -> None:
        if self.is_initialized:
            rows = indices.to(self.device)
            self.sinks = tuple(x.index_select(0, rows) for x in self.sinks)
            self.residual = tuple(x.index_select(0, rows) for x in self.residual)
            for store in self._stores():
                store.select(rows)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self._select(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.is_initialized:
            self._select(torch.arange(self.residual[0].shape[0], device=self.device).repeat_interleave(repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Select rows of the batch by number or by a mask."""
        self._select(indices.nonzero().flatten() if indices.dtype == torch.bool else indices.flatten())

    def offload(self) -> None:
        self._to("cpu")

    def prefetch(self) -> None:
        if self.is_initialized and self.residual[0].device != self.device:
            self._to(self.device)

    def _to(self, device: torch.device | str) -> None:
        if self.is_initialized:
            self.sinks = tuple(x.to(device, non_blocking=True) for x in self.sinks)
            self.residual = tuple(x.to(device, non_blocking=True) for x in self.residual)
            for store in self._stores():
                store.to(device)

    @property
    def nbytes(self) -> int:
        """The bytes allocated for tokens."""
        return sum(x.untyped_storage().nbytes() for x in (*self.sinks, *self.residual)) + sum(
            s.nbytes for s in self._stores()
        )


def joined(old: tuple[torch.Tensor, ...], new: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Append keys and values [B, H, tokens, D]."""
    return tuple(torch.cat(pair, 2) for pair in zip(old, new, strict=True))


def _at(states: tuple[torch.Tensor, ...], tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the keys and values of tokens at int64 [B, H, N]."""
    return tuple(x.take_along_dim(tokens[..., None], 2) for x in states)


@dataclass(frozen=True)
class KeptCoder:
    """A coder that keeps tokens as they are, for policies that code nothing."""

    def encode(self, blocks: torch.Tensor, start: int) -> Fields:
        return {"states": blocks.contiguous()}

    def decode(self, fields: Fields, start: int, dtype: torch.dtype) -> torch.Tensor:
        return fields["states"].to(dtype)

    def bits(self, block: int, size: int) -> float:
        return 16.0


class Selected:
    """The tokens of a prompt that each head of a layer chose, which are coded once and stay.

    Fields of a head are [B, 1, blocks, ...], and a head may have none.

    Args:
        groups: The coders of the policy.
        heads: The number of KV heads.
        block: The number of tokens that are coded at a time; 0 codes nothing.
    """

    def __init__(self, groups: Sequence[HeadGroup], heads: int, block: int) -> None:
        self.block = block or 1
        self.groups = [_of_head(groups, head) for head in range(heads)]
        self.stores = [BlockStore() for _ in self.groups]

    @property
    def tokens(self) -> int:
        """The number of tokens of the head that has most."""
        return max((store.blocks for store in self.stores), default=0) * self.block

    @property
    def total(self) -> int:
        """The number of tokens of all heads together."""
        return sum(store.blocks for store in self.stores) * self.block

    def fill(self, states: Iterable[Sequence[torch.Tensor]], start: int) -> None:
        """Code keys and values [B, 1, tokens, D] of each head. `start` is the position of the first token."""
        for group, store, pair in zip(self.groups, self.stores, states, strict=True):
            coded: Fields = {}
            for kind, coder, x in zip(("keys", "values"), (group.keys, group.values), pair, strict=True):
                fields = coder.encode(x.detach().unflatten(2, (-1, self.block)), start) if x.shape[2] else {}
                coded |= {f"{kind}.{name}": field for name, field in fields.items()}
            if coded:
                store.fill(coded)

    def read(self) -> list[tuple[HeadGroup, Fields]]:
        """Return the coders and fields of the heads that chose any tokens."""
        return [(group, store.read()) for group, store in zip(self.groups, self.stores, strict=True) if store.blocks]


def _of_head(groups: Sequence[HeadGroup], head: int) -> HeadGroup:
    for group in groups:
        if group.heads is None or head in group.heads:
            return HeadGroup(group.keys, group.values, (head,))
    return HeadGroup(KeptCoder(), KeptCoder(), (head,))
