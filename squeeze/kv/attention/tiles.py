"""Attention over a coded layer in plain torch: the definition, and the same in tiles with an online softmax.

Tiles take any policy, device and number of queries. Their working memory is one decoded tile and its scores, whatever
the context (Milakov and Gimelshein, 2018; FlashAttention, Dao et al. 2022).
"""

from __future__ import annotations

import torch

from squeeze.kv.scores import PLAIN, Scores
from squeeze.kv.view import LayerView

__all__ = ["attend", "reference_attend"]


def reference_attend(
    query: torch.Tensor, view: LayerView, bias: torch.Tensor | None, scaling: float, how: Scores = PLAIN
) -> torch.Tensor:
    """Decode the whole layer and attend with a softmax in float32: the definition.

    Args:
        query: [B, Hq, Q, D]; Hq is a multiple of the layer's KV heads.
        view: the layer.
        bias: added to the scaled scores, broadcast to [B, Hq, Q, tokens], or None.
        scaling: factor of the scores before the softmax.
        how: softcap and attention sinks.

    Returns:
        The outputs [B, Hq, Q, Dv] in the dtype of the query.
    """
    keys, values = (x.to(torch.float32) for x in view.dense())
    groups = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
    scores = how.capped(query.to(torch.float32) @ keys.transpose(-1, -2) * scaling)
    if bias is not None:
        scores = scores + bias
    if view.absent is not None:
        scores = scores.masked_fill(view.absent.repeat_interleave(groups, 0)[:, None], -torch.inf)
    return (how.weights(scores) @ values).to(query.dtype)


_TILE = 1024  # tokens decoded at a time


def attend(
    query: torch.Tensor, view: LayerView, bias: torch.Tensor | None, scaling: float, how: Scores = PLAIN
) -> torch.Tensor:
    """Attend as `reference_attend` does, decoding some blocks at a time."""
    batch, heads, queries, _ = query.shape
    kv_heads = view.residual[0].shape[1]
    rows = query.to(torch.float32).reshape(batch, kv_heads, -1, query.shape[3]) * scaling  # [B, H, groups * Q, D]
    shape = (*rows.shape[:3], 1)
    top, mass = rows.new_full(shape, -torch.inf), rows.new_zeros(shape)
    if how.sinks is not None:  # a sink is a score before all others
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
