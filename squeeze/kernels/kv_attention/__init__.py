"""Attention that reads a coded KV cache as it lies: numba on the CPU, Triton on a GPU, tiles for all else.

`install(model)` registers it with transformers and makes the model use it; `attend` is the dispatch. reference.py
defines the result. Triton is imported only when a kernel is run.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from squeeze.kernels.kv_attention import cpu, tiles
from squeeze.kv.attention_hook import register
from squeeze.kv.cache import ATTENTION
from squeeze.kv.mask import additive_mask
from squeeze.kv.view import LayerView

__all__ = ["attend", "install"]


def attend(query: torch.Tensor, view: LayerView, bias: torch.Tensor | None, scaling: float) -> torch.Tensor:
    """query [B, Hq, Q, D] over a layer's tokens, [B, Hq, Q, Dv]; see reference.attend."""
    if query.device.type == "cpu" and cpu.fits(query, view):
        return cpu.attend(query, view, bias, scaling)
    if query.device.type == "cuda" and find_spec("triton") is not None:
        from squeeze.kernels.kv_attention import kernel, ragged  # triton is optional

        if kernel.fits(query, view, bias):
            return kernel.attend(query, view, scaling)
        if ragged.fits(query, view, bias):
            return ragged.attend(query, view, scaling)
    return tiles.attend(query, view, bias, scaling)


def install(model: Any) -> None:
    """Let `model` read a QuantizedKVCache without decoding it; with any other cache it attends as with SDPA."""
    register(ATTENTION, _forward)
    model.set_attn_implementation(ATTENTION)


def _forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: Any,
    value: Any,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls; `key` is a LayerView where a QuantizedKVCache gave it."""
    if isinstance(key, LayerView) and attention_mask is not None and attention_mask.shape[-1] != key.length:
        attention_mask = _visible(query, key)
    if not isinstance(key, LayerView) or not key.is_coded:
        keys, values = key.dense() if isinstance(key, LayerView) else (key, value)
        options = {"scaling": scaling, "dropout": dropout, **kwargs}
        attended: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, keys, values, attention_mask, **options
        )
        if isinstance(key, LayerView) and key.observer is not None:
            key.observer(query)
        return attended
    causal = kwargs.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    bias = additive_mask(attention_mask, query.shape[2], key.length, causal, query)
    output = attend(query, key, bias, query.shape[-1] ** -0.5 if scaling is None else scaling)
    return output.transpose(1, 2).contiguous(), None


def _visible(query: torch.Tensor, view: LayerView) -> torch.Tensor:
    """What queries [B, Hq, Q, D] see of a layer, bool [1, 1, Q, tokens], in place of a mask of another layer's length:
    transformers makes one for all of them, and where tokens are given up, layers hold different numbers."""
    seen = torch.ones(query.shape[2], view.length, dtype=torch.bool, device=query.device)
    return seen.tril(view.length - query.shape[2])[None, None]
