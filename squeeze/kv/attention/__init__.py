"""Attention that reads a coded KV cache as it lies: numba on the CPU, Triton on a GPU, tiles for all else.

`install(model)` registers it with transformers and makes the model use it; `attend` is the dispatch. reference.py
defines the result. Softcaps and attention sinks are honoured by the loops for the CPU and by tiles; the Triton kernel
has neither. Triton is imported only when the kernel is run.
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
from squeeze.kv.attention_hook import attend_by, attending
from squeeze.kv.cache import ATTENTION
from squeeze.kv.mask import additive_mask
from squeeze.kv.offer import dense, taken
from squeeze.kv.scores import PLAIN, Request, Scores, own_attention
from squeeze.kv.view import LayerView

__all__ = ["attend", "install", "installed"]


def attend(
    query: torch.Tensor, view: LayerView, bias: torch.Tensor | None, scaling: float, how: Scores = PLAIN
) -> torch.Tensor:
    """query [B, Hq, Q, D] over a layer's tokens, [B, Hq, Q, Dv]; see reference.attend."""
    if query.device.type == "cpu" and cpu.fits(query, view):
        return cpu.attend(query, view, bias, scaling, how)
    if query.device.type == "cuda" and not query.requires_grad and how.is_plain and find_spec("triton") is not None:
        from squeeze.kv.attention import kernel  # triton is optional

        if kernel.fits(query, view, bias):
            return kernel.attend(query, view, scaling)
    return tiles.attend(query, view, bias, scaling, how)


def install(model: Any) -> None:
    """Let `model` read a QuantizedKVCache without decoding it; with any other cache it attends as with SDPA.

    A layer that asks of attention what squeeze does not honour goes on by the model's own attention, with one warning.
    """
    attend_by(model, ATTENTION, _forward)


def installed(model: Any) -> AbstractContextManager[None]:
    """`install` for a while."""
    return attending(model, ATTENTION, _forward)


def _forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: Any,
    value: Any,
    attention_mask: torch.Tensor | None = None,
    **options: Any,
) -> tuple[torch.Tensor, Any]:
    """What transformers calls; see kv/offer.py for the keys and values of a QuantizedKVCache."""
    request = Request.of(module, query, options)
    if request.unknown:
        _warn(type(module).__name__, request.unknown)
        return _by_model(module, request, query, dense(key), dense(value), attention_mask, options)
    view = taken(key, value)
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
    """The attention of the model's own file, whose masks are added to scores."""
    bias = additive_mask(mask, query.shape[2], keys.shape[2], request.causal, query)
    if bias is not None:
        bias = bias.clamp(min=torch.finfo(query.dtype).min).to(query.dtype)
    result: tuple[torch.Tensor, Any] = own_attention(module)(module, query, keys, values, bias, **options)
    return result


@cache
def _warn(name: str, unknown: tuple[str, ...]) -> None:
    warnings.warn(
        f"{name} asks of attention what squeeze does not honour ({', '.join(unknown)}): the model's own attention "
        "runs, on decoded keys and values",
        stacklevel=2,
    )


def _visible(query: torch.Tensor, view: LayerView) -> torch.Tensor:
    """What queries [B, Hq, Q, D] see of a layer, bool [1, 1, Q, tokens], in place of a mask of another layer's length:
    transformers makes one for all of them, and where tokens are given up, layers hold different numbers."""
    seen = torch.ones(query.shape[2], view.length, dtype=torch.bool, device=query.device)
    return seen.tril(view.length - query.shape[2])[None, None]
