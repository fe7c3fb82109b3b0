"""The cache that is passed to transformers: a list of layers, and operations on all of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from squeeze.errors import PolicyError, printable
from squeeze.kv.base import FullPrecision, Policy
from squeeze.kv.contract import (
    DYNAMIC_LAYER_TYPE_MAPPING,
    Cache,
    LinearAttentionLayer,
    get_layer_types_and_kwargs,
)
from squeeze.kv.file import load_cache, save_cache
from squeeze.kv.hybrid import EXACT, Hybrid
from squeeze.kv.layer import PackedLayer
from squeeze.kv.recurrent import CodedStates, Desk, PackedHybridLayer, state_tensors

__all__ = ["ATTENTION", "QuantizedKVCache"]

ATTENTION = "squeeze_kv"  # the attention implementation that reads codes
_PACKED = ("full_attention", "sliding_attention", "chunked_attention")
_BOTH = ("hybrid", "hybrid_sliding")  # with states of linear attention and with keys and values


class QuantizedKVCache(Cache):
    """A KV cache for transformers that codes each block of tokens once, when it leaves the residual window.

    It works with every attention implementation. After `squeeze.kv.attention.install(model)`, attention reads the codes
    and needs no full-precision copy of a layer. Layers of full and sliding-window attention are coded, also those that
    have states of linear attention, too. Such states stay as they are, or are coded by `squeeze.kv.Hybrid`.

    Args:
        config: The model's config.
        policy: What is coded and how, such as `squeeze.kv.KIVI(bits=4)`.

    Raises:
        PolicyError: The policy does not fit the model.

    Example:
        cache = QuantizedKVCache(model.config, KIVI(bits=4))
        model.generate(**inputs, past_key_values=cache)  # cache= from transformers 5.24 on
    """

    def __init__(self, config: Any, policy: Policy) -> None:
        self.config, self.policy = config, policy
        decoder = config.get_text_config(decoder=True)
        kinds, options = get_layer_types_and_kwargs(decoder)
        native, latent = partial(_is_native, decoder), _latent(decoder)
        layers: list[Any] = []
        coder = policy.state_coder if isinstance(policy, Hybrid) else None
        self._desk = Desk()
        for index, (kind, options_of_layer) in enumerate(zip(kinds, options, strict=True)):
            window, states = options_of_layer.get("sliding_window"), options_of_layer.get("number_of_states", 1)
            exact = window is not None and isinstance(policy, Hybrid) and policy.windows == EXACT
            how = FullPrecision() if exact else policy, index, window, native, latent
            if kind in _PACKED:
                layers.append(PackedLayer(*how))
            elif kind in _BOTH:
                layers.append(PackedHybridLayer(states, *how))
            elif kind in DYNAMIC_LAYER_TYPE_MAPPING:
                layers.append(DYNAMIC_LAYER_TYPE_MAPPING[kind](**options_of_layer))
            else:
                raise PolicyError(f"layers of kind {printable(repr(kind))} cannot be cached by this version")
            if coder is not None and isinstance(layers[-1], LinearAttentionLayer):
                layers[-1].recurrent_states = CodedStates(states, coder, self._desk)  # type: ignore[assignment]
        super().__init__(layers=layers)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        """Return a state to work on, after the one before it was coded."""
        self._desk.clear()
        state: torch.Tensor | None = super().get_recurrent_state(layer_idx, state_idx)
        return state

    def save(self, path: Path | str, model: Any = None, prompt: torch.Tensor | None = None) -> int:
        """Write the cache to a file, and return its bytes. See `squeeze.kv.file.save_cache`."""
        return save_cache(self, path, model, prompt)

    @staticmethod
    def load(path: Path | str, config: Any, **options: Any) -> QuantizedKVCache:
        """Read a cache from a file. See `squeeze.kv.file.load_cache` for the options and errors."""
        return load_cache(path, QuantizedKVCache, config, **options)

    @property
    def packed_layers(self) -> list[PackedLayer]:
        return [layer for layer in self.layers if isinstance(layer, PackedLayer)]

    @property
    def nbytes(self) -> int:
        """The bytes allocated for keys, values and states of linear attention, including unused capacity and tokens in
        full precision."""
        self._desk.clear()
        states = sum(tensor.nbytes for layer in self.layers for tensor in state_tensors(layer))
        return states + sum(layer.nbytes for layer in self.packed_layers)

    @property
    def dtype(self) -> torch.dtype | None:
        """The model's dtype, known after the first token."""
        known = (getattr(layer, "dtype", None) for layer in self.layers)
        return next((dtype for dtype in known if dtype is not None), None)

    @property
    def full_precision_nbytes(self) -> int:
        """The bytes that the tokens and states held would take without coding."""
        dense = [getattr(layer, "recurrent_states", None) for layer in self.layers]
        coded = [states for states in dense if isinstance(states, CodedStates)]
        states = sum(tensor.nbytes for layer in self.layers for tensor in state_tensors(layer))
        states += sum(one.dense_nbytes - sum(tensor.nbytes for tensor in one.tensors()) for one in coded)
        return states + sum(layer.full_precision_nbytes for layer in self.packed_layers)

    @property
    def nominal_bits(self) -> float:
        """The bits per coded value, including scales, in the mean over layers and heads; 0.0 before the first token."""
        total, count = 0.0, 0
        for layer in self.packed_layers:
            for group in layer.head_groups:
                heads = len(group.heads) if group.heads is not None else layer.residual[0].shape[1]
                for coder, like in zip((group.keys, group.values), layer.residual, strict=True):
                    total += heads * like.shape[-1] * coder.bits(self.policy.block, like.shape[-1])
                    count += heads * like.shape[-1]
        return total / count if count else 0.0

    def __iter__(self) -> Iterator[tuple[Any, Any, int | None]]:
        for layer in self.layers:
            yield getattr(layer, "keys", None), getattr(layer, "values", None), getattr(layer, "sliding_window", None)


def _is_native(config: Any) -> bool:
    return getattr(config, "_attn_implementation", None) == ATTENTION


def _latent(config: Any) -> tuple[int, int] | None:
    """Return the channels of the latent and of the rotary key that multi-head latent attention caches, or None."""
    latent, rotary = (getattr(config, name, None) for name in ("kv_lora_rank", "qk_rope_head_dim"))
    return (latent, rotary) if isinstance(latent, int) and isinstance(rotary, int) else None
