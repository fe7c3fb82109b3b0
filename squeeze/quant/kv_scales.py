"""FP8 (e4m3) KV caches: one scale for all keys and one for all values of a layer, found in calibration.

compressed-tensors describes them as a `kv_cache_scheme`, with k_scale and v_scale [1] next to each attention's
matrices. Keys are cached after their rotary positions. An attention has a cache if it projects keys and values.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import DTYPES, Checkpoint, View
from squeeze.engine.forward import forward
from squeeze.engine.network import Network
from squeeze.errors import FormatError, ModelError, printable
from squeeze.kv.contract import CACHE
from squeeze.numerics.hadamard import rotate_blocks
from squeeze.quant.activations import ACTIVATIONS
from squeeze.quant.rotate import RotatedCheckpoint

__all__ = ["KV_LEAVES", "SCHEME", "attentions", "check_scheme", "kv_ranges", "on_cache", "round_cache", "scaled_cache"]

KV_LEAVES = ("k_scale", "v_scale")
SCHEME = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False}
_GRID = ACTIVATIONS["fp8-tensor"]


def scaled_cache(checkpoint: Checkpoint, tokens: torch.Tensor, device: str = "cpu") -> Checkpoint:
    """Return the checkpoint with k_scale and v_scale for each attention, from its keys and values on tokens [N, L].

    Raises ModelError if the network has no KV cache.
    """
    size = checkpoint.transforms["R3"] if isinstance(checkpoint, RotatedCheckpoint) and checkpoint.online else 1
    dtype, views = checkpoint.float_type(), {}
    for name, largest in kv_ranges(checkpoint, tokens, device, partial(rotate_blocks, most=size)).items():
        for leaf, most in zip(KV_LEAVES, largest, strict=True):
            scale, full = _GRID.factor(most).reshape(1).to(dtype), f"{name}.{leaf}"
            views[full] = View(full, DTYPES[dtype], (1,), partial(_constant, scale))
    return checkpoint.showing(views)


def _constant(value: torch.Tensor, index: int | None) -> torch.Tensor:
    return value if index is None else value[index]


def check_scheme(described: Mapping[str, Any]) -> bool:
    """Return whether a `quantization_config` rounds the KV cache. Raises FormatError if its scheme is not supported."""
    scheme = described.get("kv_cache_scheme")
    if scheme is None:
        return False
    told = {key: scheme.get(key) for key in SCHEME} if isinstance(scheme, Mapping) else scheme
    if told != SCHEME:
        raise FormatError(f"expected a kv_cache_scheme of FP8 with one scale a layer, got {printable(told)}")
    return True


def round_cache(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Make a model round its keys and values to FP8 with the scales of a checkpoint. Raises FormatError if it has
    none."""
    for name, attention in attentions(model):
        scales = _scales(checkpoint, name)

        def change(
            keys: torch.Tensor, values: torch.Tensor, most: tuple[torch.Tensor, ...] = scales
        ) -> tuple[torch.Tensor, torch.Tensor]:
            return _GRID(keys, most[0]), _GRID(values, most[1])

        on_cache(attention, change)


def _scales(checkpoint: Checkpoint, attention: str) -> tuple[torch.Tensor, ...]:
    """Return the largest keys and values that the stored scales represent."""
    names = [f"{attention}.{leaf}" for leaf in KV_LEAVES]
    for name in names:
        if name not in checkpoint.files or checkpoint.info(name).shape not in ((), (1,)):
            raise FormatError(f"{printable(name)}: expected one scale of the FP8 KV cache")
    stored = checkpoint.load(names)
    return tuple(_GRID.largest(stored[name]) for name in names)


Change = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


class _Cache:
    """A stand-in for a cache, or for none, that changes keys and values in `update` and forwards everything else."""

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
    """Make an attention of transformers cache, and attend to, what `change` returns for its keys and values.

    `change` gets and returns tensors [B, heads, L, size]. The returned handle has `remove`.
    """

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {**kwargs, CACHE: _Cache(kwargs.get(CACHE), change)}

    return attention.register_forward_pre_hook(hook, with_kwargs=True)


def attentions(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the attentions with a cache below a module, with their names."""
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
    """Return the largest magnitudes of keys and values of each attention, float32 [] each, by its name.

    Args:
        checkpoint: the checkpoint.
        tokens: sequences [N, L].
        device: where blocks run.
        turn: applied to keys before they are measured.

    Raises:
        ModelError: no attention projects keys and values.
    """
    network = Network(checkpoint, device)
    found: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    for name, block, run in forward(network, tokens):
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
        raise ModelError(f"{checkpoint.folder}: expected attention with keys and values, found none to cache")
    return found
