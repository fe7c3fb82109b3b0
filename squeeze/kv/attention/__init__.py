"""Attention that reads a quantised KV cache without decoding it to full precision.

`install(model)` registers it with transformers and makes the model use it. `attend` chooses the implementation:
compiled loops on the CPU (cpu.py), Triton on a GPU (kernel.py), or tiles in plain torch (tiles.py, with the
definition). Triton supports neither softcaps nor attention sinks, and is imported only when the kernel runs.
"""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from squeeze.kv.attention import cpu, tiles
from squeeze.kv.cache import ATTENTION
from squeeze.kv.scores import PLAIN, Request, Scores, additive_mask, attend_by, attending, own_attention
from squeeze.kv.view import LayerView, dense, take_view

__all__ = ["attend", "install", "installed"]


def attend(
    query: torch.Tensor, view: LayerView, bias: torch.Tensor | None, scaling: float, how: Scores = PLAIN
) -> torch.Tensor:
    """Attend to the tokens of a layer with the fastest implementation that takes them.

    Args and result are those of `tiles.reference_attend`.
    """
    if query.device.type == "cpu" and cpu.fits(query, view):
        return cpu.attend(query, view, bias, scaling, how)
    if query.device.type == "cuda" and not query.requires_grad and how.is_plain and find_spec("triton") is not None:
        from squeeze.kv.attention import kernel  # triton is optional

        if kernel.fits(query, view, bias):
            return kernel.attend(query, view, scaling)
    return tiles.attend(query, view, bias, scaling, how)


def install(model: Any) -> None:
    """Make a transformers model read a QuantizedKVCache without decoding it; with other caches it uses SDPA.

    A layer with attention options that squeeze does not support keeps the model's own attention, with one warning.
    """
    attend_by(model, ATTENTION, _forward)


def installed(model: Any) -> AbstractContextManager[None]:
    """Return a context manager in which the model attends as after `install`."""
    return attending(model, ATTENTION, _forward)


def _forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: Any,
    value: Any,
    attention_mask: torch.Tensor | None = None,
    **options: Any,
) -> tuple[torch.Tensor, Any]:
    """Attend with the signature that transformers calls; kv/view.py explains keys and values of a QuantizedKVCache."""
    request = Request.of(module, query, options)
    if request.unknown:
        _warn(type(module).__name__, request.unknown)
        return _by_model(module, request, query, dense(key), dense(value), attention_mask, options)
    view = take_view(key, value)
    if view is not None:  # no token of a cache sees a later one, whatever a module says of itself
        options = {"is_causal": True, **{name: value for name, value in options.items() if value is not None}}
        request = Request.of(module, query, options)
    if view is not None and attention_mask is not None and attention_mask.shape[-1] != view.length:
        attention_mask = _visible(query, view)
    if view is not None and view.is_coded:
        bias = request.bias(attention_mask, query, view.length)
        attended = attend(query, view, bias, request.scaling, request.scores).transpose(1, 2).contiguous(), None
    else:
        keys, values = (dense(key), dense(value)) if view is None else view.dense()
        if request.scores.is_plain:
            attended = sdpa_attention_forward(module, query, keys, values, attention_mask, **options)
        else:
            attended = _by_model(module, request, query, keys, values, attention_mask, options)
    if view is not None and view.observer is not None:
        view.observer(query * (request.scaling * query.shape[-1] ** 0.5))
    return attended


def _by_model(
    module: torch.nn.Module,
    request: Request,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    options: dict[str, Any],
) -> tuple[torch.Tensor, Any]:
    """Attend by the model's own function, whose masks are added to the scores."""
    bias = additive_mask(mask, query.shape[2], keys.shape[2], request.causal, query)
    if bias is not None:
        bias = bias.clamp(min=torch.finfo(query.dtype).min).to(query.dtype)
    result: tuple[torch.Tensor, Any] = own_attention(module)(module, query, keys, values, bias, **options)
    return result


@cache
def _warn(name: str, unknown: tuple[str, ...]) -> None:
    warnings.warn(
        f"{name} uses attention options that squeeze does not support ({', '.join(unknown)}): the model's own "
        "attention runs, on decoded keys and values",
        stacklevel=2,
    )


def _visible(query: torch.Tensor, view: LayerView) -> torch.Tensor:
    """Return the causal mask of queries [B, Hq, Q, D] over a layer, bool [1, 1, Q, tokens].

    transformers builds one mask for all layers, but if tokens are evicted, layers hold different numbers of them.
    """
    seen = torch.ones(query.shape[2], view.length, dtype=torch.bool, device=query.device)
    return seen.tril(view.length - query.shape[2])[None, None]
