"""How a layer of the cache learns that attention reads what it returns, so that it need not decode all of it each time.

Models that change keys or values after the cache gave them (multi-head latent attention expands them) and models that
do not attend through transformers' registry need tensors. So a layer first returns tensors, with its view as a tag.
Attention of squeeze that gets the very same keys and values takes the view, and the layer is told. From then on it
returns `Lazy` states, which are decoded only if anything but that attention looks at them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch.utils._pytree import tree_map

from squeeze.kv.view import LayerView

__all__ = ["Lazy", "dense", "lazy", "offer", "taken"]

_TAG = "_squeeze_offer"
_OPERATORS = ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "matmul", "rmatmul", "neg", "getitem", "len")


class Lazy:
    """The keys or the values of a view: a tensor to all that is not attention of squeeze."""

    def __init__(self, view: LayerView, number: int) -> None:
        self.view, self.number = view, number

    @property
    def decoded(self) -> torch.Tensor:
        return self.view.dense()[self.number]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.decoded, name)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*tree_map(dense, args), **tree_map(dense, kwargs or {}))


def _operator(name: str) -> Callable[..., Any]:
    return lambda states, *others: getattr(states.decoded, name)(*map(dense, others))


for _name in _OPERATORS:  # which Python looks for on the class
    setattr(Lazy, f"__{_name}__", _operator(f"__{_name}__"))


def lazy(view: LayerView) -> tuple[Lazy, Lazy]:
    return Lazy(view, 0), Lazy(view, 1)


def dense(states: Any) -> Any:
    """Lazy states as a tensor; anything else as it is."""
    return states.decoded if isinstance(states, Lazy) else states


def offer(view: LayerView, on_taken: Callable[[], None]) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values as tensors that carry the view that they are of."""
    keys, values = (x.view_as(x) for x in view.dense())
    offered = view, on_taken
    for states in (keys, values):
        setattr(states, _TAG, offered)
    return keys, values


def taken(keys: Any, values: Any) -> LayerView | None:
    """The view that both are of, whose layer is told; None if a layer did not return them as they are."""
    if isinstance(keys, Lazy) and isinstance(values, Lazy):
        return keys.view
    tag = getattr(keys, _TAG, None)
    if tag is None or getattr(values, _TAG, None) is not tag:
        return None
    view, on_taken = cast(tuple[LayerView, Callable[[], None]], tag)
    on_taken()
    return view
