"""Attention as a model calls it: masks, biases, sinks and softcaps, and replacing a model's attention function.

A mask and a position bias are added to scores, so they are one tensor here. Attention sinks and a softcap change how
scores become weights. Any other argument is reported, so that none is dropped silently.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from squeeze.errors import PolicyError

__all__ = ["PLAIN", "Request", "Scores", "additive_mask", "attend_by", "attending", "own_attention"]

_HONOURED = {"scaling", "dropout", "is_causal", "softcap", "s_aux", "position_bias"}
_IN_THE_MASK = {"sliding_window", "position_ids", "cache_position", "use_cache"}  # attention itself need not know them


@dataclass(frozen=True)
class Scores:
    """The way in which scores become weights.

    Attributes:
        softcap: If given, a score s becomes softcap * tanh(s / softcap) before mask and bias are added (Gemma 2).
        sinks: If given, a logit per query head [Hq] that takes a share of the weights and adds no value (gpt-oss).
    """

    softcap: float | None = None
    sinks: torch.Tensor | None = None

    @property
    def is_plain(self) -> bool:
        return self.softcap is None and self.sinks is None

    def capped(self, scores: torch.Tensor) -> torch.Tensor:
        """Apply the softcap to scaled scores of any shape."""
        return scores if self.softcap is None else self.softcap * torch.tanh(scores / self.softcap)

    def weights(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the softmax over the last dimension of scores [B, Hq, ..., tokens] or [B, Hkv, Hq / Hkv, ...,
        tokens].
        """
        if self.sinks is None:
            return scores.softmax(-1)
        heads = scores.shape[1:2] if scores.shape[1] == len(self.sinks) else scores.shape[1:3]
        sinks = self.sinks.to(scores).view(*heads, *(1,) * (scores.dim() - 1 - len(heads)))
        return torch.cat([scores, sinks.expand(*scores.shape[:-1], 1)], -1).softmax(-1)[..., :-1]


PLAIN = Scores()


@dataclass(frozen=True)
class Request:
    """The arguments of one attention call. `unknown` names those that squeeze does not support, sorted."""

    scaling: float
    causal: bool
    scores: Scores
    position_bias: torch.Tensor | None
    unknown: tuple[str, ...]

    @staticmethod
    def of(module: Any, query: torch.Tensor, options: Mapping[str, Any]) -> Request:
        """Parse what transformers passes besides query, key, value and mask. None and False request nothing."""
        present = {name: value for name, value in options.items() if value is not None and value is not False}
        unknown = present.keys() - _HONOURED - _IN_THE_MASK
        if present.get("dropout"):
            unknown |= {"dropout"}
        causal = options.get("is_causal")
        return Request(
            scaling=present.get("scaling", query.shape[-1] ** -0.5),
            causal=getattr(module, "is_causal", True) if causal is None else causal,
            scores=Scores(present.get("softcap"), present.get("s_aux")),
            position_bias=present.get("position_bias"),
            unknown=tuple(sorted(unknown)),
        )

    @staticmethod
    def supported(module: Any, query: torch.Tensor, options: Mapping[str, Any]) -> Request:
        """Parse the arguments as `of` does. Raise PolicyError if squeeze does not support one of them."""
        request = Request.of(module, query, options)
        if request.unknown:
            raise PolicyError(
                f"{type(module).__name__} asks of attention what squeeze does not honour ({', '.join(request.unknown)})"
            )
        return request

    def bias(self, mask: torch.Tensor | None, query: torch.Tensor, tokens: int) -> torch.Tensor | None:
        """Return what is added to the scores of query [B, Hq, Q, D], float32 broadcast to [B, Hq, Q, tokens], or
        None.
        """
        bias = additive_mask(mask, query.shape[2], tokens, self.causal, query)
        if self.position_bias is None:
            return bias
        position_bias = self.position_bias.to(torch.float32)
        return position_bias if bias is None else position_bias + bias


def own_attention(module: Any) -> Callable[..., Any]:
    """Return the attention function that a model's own file defines for a layer. Raise PolicyError if it defines no
    function.
    """
    for kind in type(module).__mro__:
        if found := getattr(sys.modules[kind.__module__], "eager_attention_forward", None):
            return found  # type: ignore[no-any-return]
    raise PolicyError(f"{type(module).__name__} asks of attention what squeeze does not know: use it without a policy")


def additive_mask(
    mask: torch.Tensor | None, queries: int, tokens: int, causal: bool, like: torch.Tensor
) -> torch.Tensor | None:
    """Return a mask as float32 that is added to scores, broadcast to [B, Hq, queries, tokens], or None if nothing is
    masked.

    Args:
        mask: A boolean or additive mask, or None.
        queries: The number of queries.
        tokens: The number of tokens.
        causal: Whether attention without a mask is causal: the last query sees all tokens, the one before all but one.
        like: A tensor on the device of the result.
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


def attend_by(model: Any, name: str, forward: Callable[..., Any]) -> None:
    """Make all layers of a model use an attention function.

    A model whose class declares only its own attention keeps it, and its masks.
    """
    _register(name, forward)
    if getattr(model, "_supports_sdpa", False) or getattr(model, "_supports_attention_backend", False):
        model.set_attn_implementation(name)


def _register(name: str, forward: Callable[..., Any]) -> None:
    """Register an attention function with transformers, with masks as for SDPA."""
    ALL_ATTENTION_FUNCTIONS.register(name, forward)
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, sdpa_mask)


@contextmanager
def attending(model: Any, name: str, forward: Callable[..., Any]) -> Iterator[None]:
    """Make all layers of a model use an attention function within the block."""
    before = model.config._attn_implementation
    attend_by(model, name, forward)
    try:
        yield
    finally:
        if model.config._attn_implementation != before:
            model.set_attn_implementation(before)
