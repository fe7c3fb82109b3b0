"""Keys and values of attention where they go to the cache: seen while calibrating, or changed as a format says.

Keys have their rotary positions there. A module counts as attention with a cache where it projects keys and values.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.inputs import running
from squeeze.engine.network import Network
from squeeze.errors import ModelError
from squeeze.kv.contract import CACHE

__all__ = ["attentions", "kv_ranges", "on_cache"]

Change = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


class _Cache:
    """What an attention is given in place of a cache, or of none: all but `update` is the cache's."""

    def __init__(self, inner: Any, change: Change) -> None:
        self._inner, self._change = inner, change

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self._change(keys, values)
        if self._inner is None:
            return keys, values
        kept: tuple[torch.Tensor, torch.Tensor] = self._inner.update(keys, values, *args, **kwargs)
        return kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def on_cache(attention: nn.Module, change: Change) -> Any:
    """From here on change(keys, values), each [B, heads, L, size], says what an attention of transformers caches and
    attends to; what is returned has `remove`."""

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {**kwargs, CACHE: _Cache(kwargs.get(CACHE), change)}

    return attention.register_forward_pre_hook(hook, with_kwargs=True)


def attentions(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Attentions with a cache below a module, by name."""
    for name, child in module.named_modules():
        if hasattr(child, "k_proj") and hasattr(child, "v_proj"):
            yield name, child


@torch.inference_mode()
def kv_ranges(
    checkpoint: Checkpoint,
    tokens: torch.Tensor,
    device: str = "cpu",
    turn: Callable[[torch.Tensor], torch.Tensor] = torch.abs,
) -> Mapping[str, tuple[torch.Tensor, torch.Tensor]]:
    """The largest magnitudes, float32 [], of keys and of values of each attention, by its name, on tokens [N, L]. turn:
    what becomes of keys before they are cached. Raises ModelError for a network that has no such attention."""
    network = Network(checkpoint, device)
    found: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    for name, block, run in running(network, tokens):
        hooks = []
        for leaf, attention in attentions(block):

            def note(
                keys: torch.Tensor, values: torch.Tensor, full: str = f"{name}.{leaf}"
            ) -> tuple[torch.Tensor, torch.Tensor]:
                largest = [x.abs().amax().float().cpu() for x in (turn(keys), values)]
                known = found.get(full, largest)
                found[full] = torch.maximum(largest[0], known[0]), torch.maximum(largest[1], known[1])
                return keys, values

            hooks.append(on_cache(attention, note))
        run()
        for hook in hooks:
            hook.remove()
    if not found:
        raise ModelError(f"{checkpoint.folder}: no attention of it projects keys and values, so there is no KV cache")
    return found
