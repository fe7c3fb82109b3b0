"""The definition of attention over a coded layer, in plain torch: decode all of it, then softmax in float32."""

from __future__ import annotations

import torch

from squeeze.kv.scores import PLAIN, Scores
from squeeze.kv.view import LayerView

__all__ = ["attend"]


def attend(
    query: torch.Tensor, view: LayerView, bias: torch.Tensor | None, scaling: float, how: Scores = PLAIN
) -> torch.Tensor:
    """query [B, Hq, Q, D] to outputs [B, Hq, Q, Dv]; Hq is a multiple of the layer's KV heads.

    bias: what is added to the scaled scores, broadcast to [B, Hq, Q, tokens], or None. how: softcap and sinks.
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
