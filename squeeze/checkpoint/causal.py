"""Checks that a network is a causal language model: no token sees a later one, logits are finite, positions suffice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.pretrained import explained, is_causal
from squeeze.errors import ModelError, SqueezeError, printable

__all__ = ["check_causal", "check_finite", "check_positions", "position_limit"]

_LEAK = 1e-3  # relative difference of logits
_ENDINGS = (((5, 6), (5, 7)), ((8, 9), (8, 10)))  # pairs of texts that differ in their last token


@torch.inference_mode()
def check_causal(model: Any) -> None:
    """Raise ModelError if a model is not a causal language model, or computes logits that are not numbers."""
    if not is_causal(model.config):
        raise ModelError(
            f"{_name(model)}: expected a causal language model, got {type(model).__name__}, whose outputs are compared "
            "by `squeeze eval --inputs`"
        )
    if all(_sees_later(model, *pair) for pair in _ENDINGS):
        raise ModelError(
            f"{_name(model)}: expected a causal language model, got {type(model).__name__}, whose tokens see later ones"
        )


def _sees_later(model: Any, one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Return whether the logits of a token change with the token after it."""
    first, second = (_first_logits(model, ids) for ids in (one, other))
    least = max(_LEAK, 4 * torch.finfo(first.dtype).eps)  # the order in which experts are added may differ
    return bool((first - second).float().norm() > least * first.float().norm())


def _first_logits(model: Any, tokens: tuple[int, ...]) -> torch.Tensor:
    size = model.config.get_text_config().vocab_size
    ids = torch.tensor([[token % size for token in tokens]], device=model.device)
    with explained(_name(model)):
        logits = model(ids, use_cache=False).logits
    check_finite(model, logits, ids)
    first: torch.Tensor = logits[0, 0]
    return first.where(first.isfinite(), 0)  # an excluded token has -inf


def check_finite(model: Any, logits: torch.Tensor, ids: torch.Tensor) -> None:
    """Raise ModelError if logits of ids [B, L] are not numbers, naming the first tensor or layer at fault."""
    if bool(_is_wrong(logits)):
        raise ModelError(f"{_name(model)}: computes logits that are not numbers: {_first_wrong(model, ids)}")


def _is_wrong(values: torch.Tensor) -> torch.Tensor:
    """Return whether values have NaN or +inf; -inf only excludes a token."""
    return values.isnan().any() | values.isposinf().any()


def _first_wrong(model: Any, ids: torch.Tensor) -> str:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_floating_point() and tensor.device.type != "meta" and not bool(_all_finite(tensor)):
            return f"the tensor {printable(name)} holds NaN or infinity"
    found: list[str] = []

    def look(name: str) -> Any:
        def after(module: nn.Module, inputs: Any, output: Any) -> None:
            tensors = output if isinstance(output, tuple | list) else (output,)
            if not found and any(isinstance(x, torch.Tensor) and bool(_is_wrong(x)) for x in tensors):
                found.append(name)

        return after

    hooks = [module.register_forward_hook(look(name)) for name, module in model.named_modules() if name]
    try:
        with torch.inference_mode(), explained(_name(model)):
            model(ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    where = f"first in the output of {printable(found[0])}" if found else "not in a pass over the same tokens alone"
    return f"{where}; no weight is at fault, so try a wider dtype"


def _all_finite(tensor: torch.Tensor) -> torch.Tensor:
    """Return whether a tensor of any floating-point dtype is finite; 8-bit floats are converted first."""
    return (tensor.float() if tensor.dtype.itemsize == 1 else tensor).isfinite().all()


def position_limit(model: Any) -> int | None:
    """Return the number of tokens that a model has positions for; None if positions are computed (rotary, ALiBi)."""
    limit = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    return limit if isinstance(limit, int) and any(limit <= rows <= limit + 8 for rows in _tables(model)) else None


def _tables(model: nn.Module) -> Iterator[int]:
    """Yield the rows of each table of positions: an embedding, or a tensor that a module holds."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and _is_of_positions(name):
            yield module.num_embeddings
        kept = {**vars(module), **dict(module.named_buffers(recurse=False))}
        for leaf, value in kept.items():
            if isinstance(value, torch.Tensor) and value.dim() == 2 and _is_of_positions(leaf):
                yield value.shape[0]


def _is_of_positions(name: str) -> bool:
    return "pos" in name.lower() or name.rpartition(".")[2] == "wpe"


def check_positions(model: Any, tokens: int, advice: str) -> None:
    """Raise SqueezeError if a model has no position for the last of `tokens` tokens.

    `advice` says what to choose instead, with {} for the limit.
    """
    limit = position_limit(model)
    if limit is not None and tokens > limit:
        raise SqueezeError(
            f"{_name(model)}: has positions for {limit} tokens, got windows of {tokens}: {advice.format(limit)}"
        )


def _name(model: Any) -> str:
    return getattr(model, "name_or_path", "") or type(model).__name__
