"""Attention over a coded layer some blocks at a time, with a running softmax: any policy, any device, any queries.

Scratch is one decoded tile and its scores, whatever the context (Milakov and Gimelshein, 2018; FlashAttention).
"""

from __future__ import annotations

import torch

from squeeze.kv.scores import PLAIN, Scores
from squeeze.kv.view import LayerView

__all__ = ["attend"]

_TILE = 1024  # tokens decoded at a time


def attend(
    query: torch.Tensor, view: LayerView, bias: torch.Tensor | None, scaling: float, how: Scores = PLAIN
) -> torch.Tensor:
    """As reference.attend."""
    batch, heads, queries, _ = query.shape
    kv_heads = view.residual[0].shape[1]
    rows = query.to(torch.float32).reshape(batch, kv_heads, -1, query.shape[3]) * scaling  # [B, H, groups * Q, D]
    shape = (*rows.shape[:3], 1)
    top, mass = rows.new_full(shape, -torch.inf), rows.new_zeros(shape)
    if how.sinks is not None:  # each is a score that comes before all others
        sinks = how.sinks.to(rows).view(kv_heads, -1, 1).expand(-1, -1, queries)
        top, mass = sinks.reshape(1, kv_heads, -1, 1).expand(shape), rows.new_ones(shape)
    output = rows.new_zeros((*rows.shape[:3], view.residual[1].shape[3]))
    first, absent = 0, view.absent
    for keys, values in view.pieces(max(_TILE // max(view.block, 1), 1), torch.float32):
        count = keys.shape[2]
        if not count:
            continue
        scores = how.capped(rows @ keys.transpose(-1, -2))
        if bias is not None:
            scores = (scores.view(batch, heads, queries, count) + bias[..., first : first + count]).view_as(scores)
        if absent is not None:  # a finite score: a head may be absent from all of a tile, and from all before it
            scores = scores.masked_fill(absent[:, None, first : first + count], torch.finfo(torch.float32).min)
        higher = torch.maximum(top, scores.amax(-1, keepdim=True))
        scores = scores.sub_(higher).exp_()
        fade = (top - higher).exp_()
        mass = mass * fade + scores.sum(-1, keepdim=True)
        output = output * fade + scores @ values
        top, first = higher, first + count
    return (output / mass).view(batch, heads, queries, -1).to(query.dtype)
