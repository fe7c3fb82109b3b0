"""How a layer of the cache learns that attention reads what it returns, so that it need not decode all of it each time.

Models that change keys or values after the cache gave them (multi-head latent attention expands them) and models that
do not attend through transformers' registry need tensors. So a layer first returns tensors, with its view as a tag on
the keys. Attention of squeeze that gets the very same keys takes the view, and the layer is told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from squeeze.kv.view import LayerView

__all__ = ["offer", "taken"]

_TAG = "_squeeze_offer"


def offer(keys: torch.Tensor, view: LayerView, on_taken: Callable[[], None]) -> torch.Tensor:
    """The same keys as another object, which carries the view that they are of."""
    tagged = keys.view_as(keys)
    setattr(tagged, _TAG, (view, on_taken))
    return tagged


def taken(keys: Any) -> LayerView | None:
    """The view of what a layer returned as keys, which is told; None for any other keys."""
    if isinstance(keys, LayerView):
        return keys
    view, on_taken = getattr(keys, _TAG, (None, None))
    if on_taken is not None:
        on_taken()
    return view
