"""A model made to attend in a way of ours, through transformers' registry of attention functions."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

__all__ = ["attend_by", "attending"]


def attend_by(model: Any, name: str, forward: Callable[..., Any]) -> None:
    """Let all layers of `model` attend by `forward` from now on.

    A model whose class says that it has only its own attention keeps it, and its masks: git's decoder adds them to
    scores, while another part of its file takes any attention, and so does transformers' test of what a file takes.
    """
    _register(name, forward)
    if getattr(model, "_supports_sdpa", False) or getattr(model, "_supports_attention_backend", False):
        model.set_attn_implementation(name)


def _register(name: str, forward: Callable[..., Any]) -> None:
    """Make `forward` known to transformers, with masks as for SDPA."""
    ALL_ATTENTION_FUNCTIONS.register(name, forward)
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, sdpa_mask)


@contextmanager
def attending(model: Any, name: str, forward: Callable[..., Any]) -> Iterator[None]:
    """Let all layers of `model` attend by `forward` for a while."""
    before = model.config._attn_implementation
    attend_by(model, name, forward)
    try:
        yield
    finally:
        if model.config._attn_implementation != before:
            model.set_attn_implementation(before)
