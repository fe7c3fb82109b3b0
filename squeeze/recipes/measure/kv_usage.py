"""Checks, by one pass over two tokens, of whether a KV policy can do anything for a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from squeeze.errors import PolicyError
from squeeze.kv.attention import installed
from squeeze.kv.base import FullPrecision, Policy
from squeeze.kv.cache import QuantizedKVCache
from squeeze.kv.contract import CACHE
from squeeze.kv.measure import PIECE
from squeeze.kv.recurrent import state_tensors

__all__ = ["Usage", "check_coded", "check_pieces", "check_read", "usage_of"]


@dataclass(frozen=True)
class Usage:
    """Numbers of the layers that put keys and values into the cache, and of those whose attention reads the cache
    unchanged.
    """

    cached: frozenset[int]
    read: frozenset[int]

    @property
    def attention_reads_all(self) -> bool:
        return self.cached == self.read


@torch.inference_mode()
def usage_of(model: Any, states: bool = False) -> Usage:
    """Run two tokens through a model and return which layers use the cache.

    Args:
        model: The loaded model.
        states: Whether every policy codes recurrent states, so that a model may have nothing else.

    Raises:
        PolicyError: If the model caches nothing that a policy could quantise.
    """
    with installed(model):
        cache = QuantizedKVCache(model.config, FullPrecision())
        ids = torch.tensor([[0, 1]], device=model.device)
        try:
            model(ids, use_cache=True, logits_to_keep=1, **{CACHE: cache})
        except ValueError as error:
            if type(cache).__name__ not in str(error):
                raise
            name = type(model).__name__
            raise PolicyError(f"{name} runs only with a cache class of its own, which no policy codes") from error
    filled = [layer for layer in cache.packed_layers if layer.is_initialized]
    layer_types = {type(layer).__name__ for layer in cache.layers if getattr(layer, "is_initialized", False)}
    if states and not filled and any(True for layer in cache.layers for _ in state_tensors(layer)):
        return Usage(frozenset(), frozenset())
    if not filled and layer_types:
        raise PolicyError(
            f"{type(model).__name__} caches states of kinds that no policy codes: {', '.join(sorted(layer_types))}"
        )
    if not filled:
        raise PolicyError(f"{type(model).__name__} keeps no keys and values in a cache, so that no policy can code any")
    return Usage(
        frozenset(layer.index for layer in filled), frozenset(layer.index for layer in filled if layer.is_read)
    )


@torch.inference_mode()
def check_pieces(model: Any) -> None:
    """Raise PolicyError if a model cannot read several tokens at once after its cache holds some."""
    cache = QuantizedKVCache(model.config, FullPrecision())
    ids = torch.tensor([[0, 1]], device=model.device)
    try:
        for _ in range(2):
            model(ids, use_cache=True, logits_to_keep=1, **{CACHE: cache})
    except (AssertionError, ValueError, NotImplementedError) as error:
        raise PolicyError(
            f"{type(model).__name__} takes one token at a time once its cache holds any, and a text is read {PIECE} at "
            "a time: its caches cannot be measured"
        ) from error


def check_read(model: Any, usage: Usage, reason: str) -> None:
    """Raise PolicyError if attention does not read what the cache returns in all layers."""
    if not usage.attention_reads_all:
        raise PolicyError(
            f"{reason}, and {type(model).__name__} changes what it reads from its cache: choose another policy, "
            "such as kivi:4"
        )


def check_coded(spec: str, policy: Policy, context: int, in_pieces: bool) -> None:
    """Raise PolicyError if a context ends before any token reads a block that the policy has quantised.

    Its perplexity would be that of full precision, in a row with the policy's bits.

    Args:
        spec: Name of the policy in the message.
        context: Tokens of a window.
        in_pieces: Whether the window is read PIECE tokens at a time.
    """
    exact = policy.sinks + policy.window
    before = exact + policy.block
    least = (-(-before // PIECE) * PIECE if in_pieces else before) + 2  # the last token predicts nothing
    if policy.block and context < least:
        raise PolicyError(
            f"{spec} keeps {exact} tokens exact and codes {policy.block} at a time: in a context of {context} it codes "
            f"nothing that is measured: use `context` {least} or more, or a policy with a smaller window or block"
        )
