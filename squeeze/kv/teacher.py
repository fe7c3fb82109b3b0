"""Teacher-forced quality of a cache in one forward pass: attention as decoding would see it at every token.

Each token attends exactly to the sinks and to the latest `window` tokens, including itself, and to all others as the
policy codes them. The cache keeps up to one block more exact, so this is its worst case. Only tokens at the end that do
not fill a block stay exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from squeeze.kv.base import Policy
from squeeze.kv.scores import Request, additive_mask, attending

__all__ = ["teacher_forced"]

_NAME = "squeeze_kv_teacher"
_QUERIES = 256  # whose scores are in memory at once


@contextmanager
def teacher_forced(model: Any, policy: Policy) -> Iterator[None]:
    """Let model(ids, use_cache=False) attend to tokens outside the window as `policy` codes them, within the block."""

    def forward(
        module: Any, query: Any, key: Any, value: Any, attention_mask: Any = None, **options: Any
    ) -> tuple[torch.Tensor, None]:
        request = Request.supported(module, query, options)
        coded = coded_states(policy, module.layer_idx, key, value)
        return _attend(policy, query, (key, value), coded, attention_mask, request), None

    with attending(model, _NAME, forward):
        yield


def coded_states(
    policy: Policy, layer: int, keys: torch.Tensor, values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values [B, H, T, D] as the cache would return them with all full blocks after the sinks coded."""
    block, keys, values = policy.block, keys.clone(), values.clone()
    count = max(keys.shape[2] - policy.sinks, 0) // block if block else 0
    if not count:
        return keys, values
    span = slice(policy.sinks, policy.sinks + count * block)
    for group in policy.head_groups(layer, keys.shape[1]):
        heads = slice(None) if group.heads is None else list(group.heads)
        for coder, states in ((group.keys, keys), (group.values, values)):
            blocks = states[:, heads, span].unflatten(2, (count, block))
            decoded = coder.decode(coder.encode(blocks, policy.sinks), policy.sinks, states.dtype)
            states[:, heads, span] = decoded.flatten(2, 3)
    return keys, values


def _attend(
    policy: Policy,
    query: torch.Tensor,
    exact: tuple[torch.Tensor, torch.Tensor],
    coded: tuple[torch.Tensor, torch.Tensor],
    mask: torch.Tensor | None,
    request: Request,
) -> torch.Tensor:
    """Attend from query [B, Hq, T, D] in float32, and return [B, T, Hq, D] in the query's dtype."""
    batch, heads, length, size = query.shape
    kv_heads = exact[0].shape[1]
    position = torch.arange(length, device=query.device)
    output = query.new_empty((batch, length, heads, exact[1].shape[3]))
    for first in range(0, length, _QUERIES):
        last = min(first + _QUERIES, length)
        rows = query[:, :, first:last].float().reshape(batch, kv_heads, heads // kv_heads, last - first, size)
        near = position[first:last, None] - position[:last] < policy.window  # [queries, tokens]
        k, kc, v, vc = (x[:, :, None, :last].float() for x in (exact[0], coded[0], exact[1], coded[1]))
        scores = torch.where(near, rows @ k.transpose(-1, -2), rows @ kc.transpose(-1, -2)) * request.scaling
        scores = request.scores.capped(scores)
        tile = None if mask is None else mask[:, :, first:last, :last]
        position_bias = None if request.position_bias is None else request.position_bias[:, :, first:last, :last]
        for bias in (additive_mask(tile, last - first, last, True, query), position_bias):
            if bias is not None:
                scores = scores + _by_kv_heads(bias, kv_heads)
        weights = request.scores.weights(scores)
        states = (weights * near) @ v + (weights * ~near) @ vc
        output[:, first:last] = states.flatten(1, 2).transpose(1, 2)
    return output


def _by_kv_heads(bias: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """Reshape a bias [B, 1 or Hq, Q, T] for scores [B, Hkv, Hq / Hkv, Q, T]."""
    return bias[:, :, None] if bias.shape[1] == 1 else bias.unflatten(1, (kv_heads, -1))
