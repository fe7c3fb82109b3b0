"""Attention masks as transformers gives them, as what is added to scores."""

import torch

__all__ = ["additive_mask"]


def additive_mask(
    mask: torch.Tensor | None, queries: int, tokens: int, causal: bool, like: torch.Tensor
) -> torch.Tensor | None:
    """float32, broadcast to [B, Hq, queries, tokens], of a mask (None, of bools, or of what is added already); None
    where nothing is masked.

    Without a mask and `causal`, the last query sees all tokens, the one before it all but the last, and so on.
    """
    least = torch.finfo(torch.float32).min
    if mask is None:
        if not causal or queries == 1:
            return None
        position = torch.arange(tokens, device=like.device)
        visible = position <= torch.arange(tokens - queries, tokens, device=like.device)[:, None]
        return torch.zeros(queries, tokens, device=like.device).masked_fill(~visible, least)[None, None]
    mask = mask[..., :tokens]
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, least)
    return mask.to(torch.float32)
