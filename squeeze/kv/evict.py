"""Eviction of tokens, or keeping some in full precision, around any other policy that codes the rest.

Evicted tokens still count, so that positions are unchanged. Eviction does not work with padded batches, whose masks
would apply to the wrong tokens, and a cache cannot be cropped into the prompt from which tokens were chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from squeeze.errors import PolicyError
from squeeze.kv.base import LayerTokens, Policy
from squeeze.kv.hybrid import Hybrid, Wrapper

__all__ = ["AdaKV", "Eviction", "SinksAndWindow", "SnapKV", "SoftPrune", "innermost", "of_layer"]

PerLayer = int | tuple[int, ...]  # a number for all layers, or one for each


@dataclass(frozen=True)
class Eviction(Wrapper):
    """A base of policies that wrap a policy which keeps all tokens."""

    evicts = True

    def __post_init__(self) -> None:
        if isinstance(self.policy, Hybrid):
            raise PolicyError("hybrid wraps all other policies: give it last")
        if self.policy.evicts:
            kinds = " and ".join(type(one).__name__ for one in (self.policy, self))
            raise PolicyError(f"expected one policy that gives up tokens, got {kinds}: leave one out")
        if self.policy.archives:
            raise PolicyError("an archive holds all tokens: leave out the eviction")


@dataclass(frozen=True)
class SinksAndWindow(Eviction):
    """A policy that keeps the sinks, the latest tokens, and `limit` tokens between them, rounded up to blocks.

    StreamingLLM: Xiao et al., "Efficient streaming language models with attention sinks", 2023.
    """

    limit: PerLayer = 1024

    def on_step(self, layer: LayerTokens) -> None:
        if limit := of_layer(self.limit, layer.index):
            layer.keep_latest(limit)


@dataclass(frozen=True)
class _Observing(Eviction):
    """A base of policies in which each KV head chooses tokens of a prompt by the attention of its last queries.

    Queries are seen by squeeze's attention only.

    Args:
        policy: The policy that codes tokens.
        select: The number of tokens that each KV head chooses outside sinks and window, for the model or for each
            layer.
        observed: The number of last queries.
        pool: The number of adjacent tokens over which weights are smoothed, odd.
    """

    select: PerLayer = 1024
    observed: int = 32
    pool: int = 7

    @property
    def observes(self) -> bool:
        return bool(self.select)

    def wants_queries(self, layer: int, tokens: int) -> bool:
        return 0 < of_layer(self.select, layer) < tokens

    def chosen_tokens(self, query: torch.Tensor, layer: LayerTokens) -> torch.Tensor:
        """Return the choosable tokens with the highest weights, ascending, int64 [B, H, select]."""
        weights = self._weights(query, layer.sinks[0], layer.residual[0], layer.choosable)
        return weights.topk(of_layer(self.select, layer.index), -1).indices.sort(-1).values

    def _weights(self, query: torch.Tensor, sinks: torch.Tensor, keys: torch.Tensor, count: int) -> torch.Tensor:
        """Return the weights of the first `count` keys after the sinks, [B, H, count]."""
        shares = self._shares(query, torch.cat([sinks, keys], 2))[..., sinks.shape[2] :][..., :count]
        return torch.nn.functional.avg_pool1d(shares, self.pool, 1, self.pool // 2)

    def _shares(self, query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return the share of the last queries' attention that goes to each of keys [B, H, T, D], as [B, H, T]."""
        rows = query[:, :, -self.observed :].float().unflatten(1, (keys.shape[1], -1))  # [B, H, G, Q, D]
        hidden = torch.ones(rows.shape[3], keys.shape[2], dtype=torch.bool, device=keys.device).triu(
            keys.shape[2] - rows.shape[3] + 1
        )
        scores = rows @ keys[:, :, None].float().transpose(-1, -2) * keys.shape[3] ** -0.5
        shares: torch.Tensor = scores.masked_fill(hidden, -torch.inf).softmax(-1).sum((2, 3))
        return shares


@dataclass(frozen=True)
class SnapKV(_Observing):
    """A policy that codes the chosen tokens and evicts all others.

    Li et al., "SnapKV: LLM knows what you are looking for before generation", 2024. Different numbers in each layer are
    PyramidKV (Cai et al., 2024).
    """

    def on_prompt(self, layer: LayerTokens, query: torch.Tensor) -> None:
        layer.keep(self.chosen_tokens(query, layer))


@dataclass(frozen=True)
class AdaKV(_Observing):
    """A policy like SnapKV in which the heads of a layer share a budget of tokens.

    Tokens with the highest weights of all heads together are chosen, so that heads keep different numbers (Feng et al.,
    "Ada-KV", 2024).

    Args:
        select: The mean number of tokens over heads.
        floor: The share of `select` that every head has at least.
    """

    floor: float = 0.2
    by_heads = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.floor <= 1:
            raise PolicyError(f"floor must be from 0 to 1, got {self.floor}")

    def on_prompt(self, layer: LayerTokens, query: torch.Tensor) -> None:
        layer.keep_by_heads(self.chosen_by_heads(query, layer))

    def chosen_by_heads(self, query: torch.Tensor, layer: LayerTokens) -> list[torch.Tensor]:
        """Return the choosable tokens of each head in whole blocks, ascending, int64 [B, tokens].

        All rows of a batch have as many tokens.
        """
        weights = self._weights(query, layer.sinks[0], layer.residual[0], layer.choosable)
        counts = _counts(weights, of_layer(self.select, layer.index), self.block or 1, self.floor)
        return [weights[:, head].topk(tokens, -1).indices.sort(-1).values for head, tokens in enumerate(counts)]


@dataclass(frozen=True)
class SoftPrune(_Observing):
    """A policy that keeps the chosen tokens in the model's dtype and codes all others.

    MiKV: Yang et al., "No token left behind", 2024.
    """

    select: PerLayer = 128
    adds_sinks = True

    def on_prompt(self, layer: LayerTokens, query: torch.Tensor) -> None:
        layer.keep_exact(self.chosen_tokens(query, layer))


def _counts(weights: torch.Tensor, select: int, block: int, floor: float) -> list[int]:
    """Return the number of tokens of each head in whole blocks.

    Args:
        weights: The weights of the tokens to choose from, [B, H, T].
        select: The mean number of tokens over heads.
        block: Tokens of a block.
        floor: The share of `select` that every head has at least.
    """
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
    """Return the policy that others wrap, or the policy itself."""
    return innermost(policy.policy) if isinstance(policy, Eviction | Hybrid) else policy


def of_layer(number: PerLayer, layer: int) -> int:
    """Return the number of tokens for one layer. Raise PolicyError if there is no number for it."""
    if isinstance(number, int):
        return number
    if layer >= len(number):
        raise PolicyError(f"eviction is given for {len(number)} layers, and the model has more")
    return number[layer]
