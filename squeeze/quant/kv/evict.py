"""Giving up tokens, around any other policy: what is left is coded as that policy codes it.

Evicted tokens keep their place in the count of tokens, so that positions go on as before. A batch with padding does
not go with eviction: masks are then of the wrong tokens.
"""

from dataclasses import dataclass

import torch

from squeeze.quant.kv.base import Part, Policy

__all__ = ["SinksAndWindow", "SnapKV"]


@dataclass(frozen=True)
class _Around:
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

    def parts(self, layer: int, heads: int) -> list[Part]:
        return self.policy.parts(layer, heads)


@dataclass(frozen=True)
class SinksAndWindow(_Around):
    """Sinks, recent tokens, and `limit` coded tokens between them, rounded up to blocks; older ones are given up
    (StreamingLLM: Xiao et al., "Efficient streaming language models with attention sinks", 2023).
    """

    limit: int = 1024


@dataclass(frozen=True)
class SnapKV(_Around):
    """Of a prompt, `select` tokens of each KV head beside sinks and window: those that its last queries look at most.

    observed: queries that are asked. pool: tokens over which their weights are smoothed, odd (Li et al., "SnapKV: LLM
    knows what you are looking for before generation", 2024). Queries are seen by squeeze's attention only.
    """

    select: int = 1024
    observed: int = 32
    pool: int = 7

    def chosen(self, query: torch.Tensor, keys: torch.Tensor, count: int) -> torch.Tensor:
        """Of the first `count` of keys [B, H, T, D], the tokens to keep, ascending, int64 [B, H, select]."""
        batch, size = query.shape[0], query.shape[3]
        rows = query[:, :, -self.observed :].float().reshape(batch, keys.shape[1], -1, size)
        weights = (rows @ keys[:, :, :count].float().transpose(-1, -2) * size**-0.5).softmax(-1).sum(2)
        smooth = torch.nn.functional.avg_pool1d(weights, self.pool, 1, self.pool // 2)
        return smooth.topk(self.select, -1).indices.sort(-1).values
