"""What a model asks of attention besides products of queries and keys, and which of it squeeze honours.

A mask and a position bias are added to scores, so they are one tensor here (mask.py). Attention sinks and a softcap
change how scores become weights. Any other argument is named, so that nobody drops it unseen.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from squeeze.errors import PolicyError
from squeeze.kv.mask import additive_mask

__all__ = ["PLAIN", "Request", "Scores", "own_attention"]

_HONOURED = {"scaling", "dropout", "is_causal", "softcap", "s_aux", "position_bias"}
_IN_THE_MASK = {"sliding_window", "position_ids", "cache_position", "use_cache"}  # attention itself need not know them


@dataclass(frozen=True)
class Scores:
    """How scores become weights.

    softcap: a score s becomes softcap * tanh(s / softcap), before mask and bias are added (Gemma 2). sinks: a logit for
    each query head [Hq] that takes its share of the weights and adds no value (gpt-oss).
    """

    softcap: float | None = None
    sinks: torch.Tensor | None = None

    @property
    def is_plain(self) -> bool:
        return self.softcap is None and self.sinks is None

    def capped(self, scores: torch.Tensor) -> torch.Tensor:
        """Scaled scores of any shape, before anything is added to them."""
        return scores if self.softcap is None else self.softcap * torch.tanh(scores / self.softcap)

    def weights(self, scores: torch.Tensor) -> torch.Tensor:
        """Softmax over the last dimension of scores [B, Hq, ..., tokens] or [B, Hkv, Hq / Hkv, ..., tokens]."""
        if self.sinks is None:
            return scores.softmax(-1)
        heads = scores.shape[1:2] if scores.shape[1] == len(self.sinks) else scores.shape[1:3]
        sinks = self.sinks.to(scores).view(*heads, *(1,) * (scores.dim() - 1 - len(heads)))
        return torch.cat([scores, sinks.expand(*scores.shape[:-1], 1)], -1).softmax(-1)[..., :-1]


PLAIN = Scores()


@dataclass(frozen=True)
class Request:
    """The arguments of one call of attention. unknown: names of those that squeeze does not honour, sorted."""

    scaling: float
    causal: bool
    scores: Scores
    position_bias: torch.Tensor | None
    unknown: tuple[str, ...]

    @staticmethod
    def of(module: Any, query: torch.Tensor, options: Mapping[str, Any]) -> Request:
        """What transformers passes besides query, key, value and mask; None and False ask for nothing."""
        given = {name: value for name, value in options.items() if value is not None and value is not False}
        unknown = given.keys() - _HONOURED - _IN_THE_MASK
        if given.get("dropout"):
            unknown |= {"dropout"}
        causal = options.get("is_causal")
        return Request(
            scaling=given.get("scaling", query.shape[-1] ** -0.5),
            causal=getattr(module, "is_causal", True) if causal is None else causal,
            scores=Scores(given.get("softcap"), given.get("s_aux")),
            position_bias=given.get("position_bias"),
            unknown=tuple(sorted(unknown)),
        )

    @staticmethod
    def known(module: Any, query: torch.Tensor, options: Mapping[str, Any]) -> Request:
        """The same. Raises PolicyError if squeeze does not honour all arguments."""
        request = Request.of(module, query, options)
        if request.unknown:
            raise PolicyError(
                f"{type(module).__name__} asks of attention what squeeze does not honour ({', '.join(request.unknown)})"
            )
        return request

    def bias(self, mask: torch.Tensor | None, query: torch.Tensor, tokens: int) -> torch.Tensor | None:
        """What is added to the scores of query [B, Hq, Q, D], float32 broadcast to [B, Hq, Q, tokens], or None."""
        bias = additive_mask(mask, query.shape[2], tokens, self.causal, query)
        if self.position_bias is None:
            return bias
        position_bias = self.position_bias.to(torch.float32)
        return position_bias if bias is None else position_bias + bias


def own_attention(module: Any) -> Callable[..., Any]:
    """The attention that a model's own file defines for a layer. Raises PolicyError if there is none."""
    for kind in type(module).__mro__:
        if found := getattr(sys.modules[kind.__module__], "eager_attention_forward", None):
            return found  # type: ignore[no-any-return]
    raise PolicyError(f"{type(module).__name__} asks of attention what squeeze does not know: use it without a policy")
