"""The definition of attention over a coded layer, in plain torch: decode all of it, then softmax in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from squeeze.kv.view import View

__all__ = ["attend", "bias_of"]


def attend(query: torch.Tensor, view: View, bias: torch.Tensor | None, scaling: float) -> torch.Tensor:
    """query [B, Hq, Q, D] to outputs [B, Hq, Q, Dv]; Hq is a multiple of the layer's KV heads.

    bias: what is added to the scaled scores, broadcast to [B, Hq, Q, tokens], or None.
    """
    keys, values = (x.to(torch.float32) for x in view.dense())
    groups = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
    scores = query.to(torch.float32) @ keys.transpose(-1, -2) * scaling
    if bias is not None:
        scores = scores + bias
    return (scores.softmax(-1) @ values).to(query.dtype)


def bias_of(
    mask: torch.Tensor | None, queries: int, tokens: int, causal: bool, like: torch.Tensor
) -> torch.Tensor | None:
    """A mask as transformers gives it (None, of bools, or of what is added), as what is added to scores.

    Without one and `causal`, the last query sees all tokens, the one before it all but the last, and so on.
    """
    least = torch.finfo(torch.float32).min
    if mask is None:
        if not causal or queries == 1:
            return None
        place = torch.arange(tokens, device=like.device)
        seen = place <= torch.arange(tokens - queries, tokens, device=like.device)[:, None]
        return torch.zeros(queries, tokens, device=like.device).masked_fill(~seen, least)[None, None]
    mask = mask[..., :tokens]
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, least)
    return mask.to(torch.float32)
