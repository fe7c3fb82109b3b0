"""Giving up tokens, or keeping some better than others, around any other policy: what is left is coded as it codes it.

Evicted tokens keep their place in the count of tokens, so that positions go on as before. A batch with padding does
not go with eviction: masks are then of the wrong tokens. Nor does a crop into the prompt that was chosen from.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from squeeze.errors import PolicyError
from squeeze.kv.base import HeadGroup, Held, Policy

__all__ = ["AdaKV", "Eviction", "SinksAndWindow", "SnapKV", "SoftPrune", "innermost", "of_layer"]

PerLayer = int | tuple[int, ...]  # of every layer, or of each


@dataclass(frozen=True)
class Eviction(Policy):
    """Goes around a policy that keeps all tokens, whose coders and numbers of tokens it has."""

    policy: Policy
    evicts = True

    def __post_init__(self) -> None:
        if self.policy.evicts:
            kinds = " and ".join(type(one).__name__ for one in (self.policy, self))
            raise PolicyError(f"expected one policy that gives up tokens, got {kinds}: leave one out")

    @property
    def sinks(self) -> int:
        return self.policy.sinks

    @property
    def window(self) -> int:
        return self.policy.window

    @property
    def block(self) -> int:
        return self.policy.block

    def head_groups(self, layer: int, heads: int) -> list[HeadGroup]:
        return self.policy.head_groups(layer, heads)


@dataclass(frozen=True)
class SinksAndWindow(Eviction):
    """Sinks, recent tokens, and `limit` tokens between them, rounded up to blocks; older ones are given up
    (StreamingLLM: Xiao et al., "Efficient streaming language models with attention sinks", 2023).
    """

    limit: PerLayer = 1024

    def on_step(self, held: Held) -> None:
        if limit := of_layer(self.limit, held.index):
            held.keep_latest(limit)


@dataclass(frozen=True)
class _Observing(Eviction):
    """select: tokens of a prompt that each KV head chooses, sinks and window aside: those that get most of the
    attention that its last queries give to all tokens. observed: queries that are asked. pool: tokens over which their
    weights are smoothed, odd. Queries are seen by squeeze's attention only.
    """

    select: PerLayer = 1024
    observed: int = 32
    pool: int = 7

    @property
    def observes(self) -> bool:
        return bool(self.select)

    def wants_queries(self, layer: int, tokens: int) -> bool:
        return 0 < of_layer(self.select, layer) < tokens

    def chosen(self, query: torch.Tensor, held: Held) -> torch.Tensor:
        """The choosable tokens that are chosen, ascending, int64 [B, H, select]."""
        weights = self._weights(query, held.sinks[0], held.residual[0], held.choosable)
        return weights.topk(of_layer(self.select, held.index), -1).indices.sort(-1).values

    def _weights(self, query: torch.Tensor, sinks: torch.Tensor, keys: torch.Tensor, count: int) -> torch.Tensor:
        """By which the first `count` of keys after the sinks are chosen, [B, H, count]."""
        shares = self._shares(query, torch.cat([sinks, keys], 2))[..., sinks.shape[2] :][..., :count]
        return torch.nn.functional.avg_pool1d(shares, self.pool, 1, self.pool // 2)

    def _shares(self, query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Of the attention of the last queries, what goes to each of keys [B, H, T, D], [B, H, T]."""
        rows = query[:, :, -self.observed :].float().unflatten(1, (keys.shape[1], -1))  # [B, H, G, Q, D]
        hidden = torch.ones(rows.shape[3], keys.shape[2], dtype=torch.bool, device=keys.device).triu(
            keys.shape[2] - rows.shape[3] + 1
        )
        scores = rows @ keys[:, :, None].float().transpose(-1, -2) * keys.shape[3] ** -0.5
        shares: torch.Tensor = scores.masked_fill(hidden, -torch.inf).softmax(-1).sum((2, 3))
        return shares


@dataclass(frozen=True)
class SnapKV(_Observing):
    """The tokens chosen are coded, all others are given up (Li et al., "SnapKV: LLM knows what you are looking for
    before generation", 2024; other numbers in other layers: PyramidKV, Cai et al., 2024).
    """

    def on_prompt(self, held: Held, query: torch.Tensor) -> None:
        held.keep(self.chosen(query, held))


@dataclass(frozen=True)
class AdaKV(_Observing):
    """As SnapKV, but the heads of a layer share what it keeps: of the weights of all heads together, the highest count,
    and a head's number of tokens is that of its weights among them (Feng et al., "Ada-KV", 2024). `select` is the mean
    over heads. floor: share of `select` that every head has at least.
    """

    floor: float = 0.2
    by_heads = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.floor <= 1:
            raise PolicyError(f"floor is a share of the tokens that stay, from 0 to 1, and {self.floor} is none")

    def on_prompt(self, held: Held, query: torch.Tensor) -> None:
        held.keep_by_heads(self.chosen_by_heads(query, held))

    def chosen_by_heads(self, query: torch.Tensor, held: Held) -> list[torch.Tensor]:
        """The choosable tokens that each head chooses, ascending, int64 [B, tokens]: whole blocks, and as many in all
        rows of a batch."""
        weights = self._weights(query, held.sinks[0], held.residual[0], held.choosable)
        counts = _counts(weights, of_layer(self.select, held.index), self.block or 1, self.floor)
        return [weights[:, head].topk(tokens, -1).indices.sort(-1).values for head, tokens in enumerate(counts)]


@dataclass(frozen=True)
class SoftPrune(_Observing):
    """The tokens chosen stay in the model's dtype, all others are coded instead of given up (MiKV: Yang et al., "No
    token left behind", 2024).
    """

    select: PerLayer = 128
    adds_sinks = True

    def on_prompt(self, held: Held, query: torch.Tensor) -> None:
        held.keep_exact(self.chosen(query, held))


def _counts(weights: torch.Tensor, select: int, block: int, floor: float) -> list[int]:
    """Tokens of each head, whole blocks, by the weights [B, H, T] of the tokens to choose from; `select` in the mean,
    rounded up to a block of one head."""
    heads, tokens = weights.shape[1:]
    most = tokens // block
    total = min(-(-heads * select // block), heads * most)
    least = min(int(floor * total / heads), most)
    rest = weights.sort(-1, descending=True).values[..., least * block :].flatten(1)
    top = rest.topk(min((total - least * heads) * block, rest.shape[1]), -1).indices // max(tokens - least * block, 1)
    wanted = torch.stack([(top == head).sum(1) for head in range(heads)], 1).double().mean(0) / block
    counts = (wanted.floor().long() + least).clamp(max=most).tolist()
    by_need = (wanted - wanted.floor()).argsort(descending=True, stable=True).tolist()
    while sum(counts) < total:
        for head in by_need:
            if sum(counts) < total and counts[head] < most:
                counts[head] += 1
    return [count * block for count in counts]


def innermost(policy: Policy) -> Policy:
    """What evictions go around; any other policy itself."""
    return innermost(policy.policy) if isinstance(policy, Eviction) else policy


def of_layer(number: PerLayer, layer: int) -> int:
    """The number of tokens of one layer. Raises PolicyError where none is given for it."""
    if isinstance(number, int):
        return number
    if layer >= len(number):
        raise PolicyError(f"eviction is given for {len(number)} layers, and the model has more")
    return number[layer]
