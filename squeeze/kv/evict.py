"""Giving up tokens, or keeping some better than others, around any other policy: what is left is coded as it codes it.

Evicted tokens keep their place in the count of tokens, so that positions go on as before. A batch with padding does
not go with eviction: masks are then of the wrong tokens. Nor does a crop into the prompt that was chosen from.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from squeeze.errors import PolicyError
from squeeze.kv.base import HeadGroup, Policy

__all__ = ["Eviction", "SinksAndWindow", "SnapKV", "SoftPrune", "innermost", "of_layer"]

PerLayer = int | tuple[int, ...]  # of every layer, or of each


@dataclass(frozen=True)
class Eviction:
    """Goes around a policy, whose coders and numbers of tokens it has."""

    policy: Policy

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


@dataclass(frozen=True)
class _Observing(Eviction):
    """select: tokens of a prompt that each KV head chooses, sinks and window aside: those that its last queries look
    at most. observed: queries that are asked. pool: tokens over which their weights are smoothed, odd. Queries are
    seen by squeeze's attention only.
    """

    select: PerLayer = 1024
    observed: int = 32
    pool: int = 7

    def chosen(self, query: torch.Tensor, keys: torch.Tensor, count: int, select: int) -> torch.Tensor:
        """Of the first `count` of keys [B, H, T, D], the tokens chosen, ascending, int64 [B, H, select]."""
        batch, size = query.shape[0], query.shape[3]
        rows = query[:, :, -self.observed :].float().reshape(batch, keys.shape[1], -1, size)
        weights = (rows @ keys[:, :, :count].float().transpose(-1, -2) * size**-0.5).softmax(-1).sum(2)
        smooth = torch.nn.functional.avg_pool1d(weights, self.pool, 1, self.pool // 2)
        return smooth.topk(select, -1).indices.sort(-1).values


@dataclass(frozen=True)
class SnapKV(_Observing):
    """The tokens chosen are coded, all others are given up (Li et al., "SnapKV: LLM knows what you are looking for
    before generation", 2024; other numbers in other layers: PyramidKV, Cai et al., 2024).
    """


@dataclass(frozen=True)
class SoftPrune(_Observing):
    """The tokens chosen stay in the model's dtype, all others are coded instead of given up (MiKV: Yang et al., "No
    token left behind", 2024).
    """

    select: PerLayer = 128


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
