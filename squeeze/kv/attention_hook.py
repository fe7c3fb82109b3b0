"""A model made to attend in a way of ours, through transformers' registry of attention functions."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

__all__ = ["attending", "register"]


def register(name: str, forward: Callable[..., Any]) -> None:
    """Make `forward` known to transformers, with masks as for SDPA."""
    ALL_ATTENTION_FUNCTIONS.register(name, forward)
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, sdpa_mask)


@contextmanager
def attending(model: Any, name: str, forward: Callable[..., Any]) -> Iterator[None]:
    """Let all layers of `model` attend by `forward` for a while."""
    before = model.config._attn_implementation
    register(name, forward)
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
