"""Scales of a KV cache in FP8 (e4m3): one for all keys and one for all values of a layer, from the calibration.

compressed-tensors has them as a `kv_cache_scheme`, with k_scale and v_scale [1] beside each attention's matrices.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.view import DTYPES, View
from squeeze.engine.cached import attentions, kv_ranges, on_cache
from squeeze.errors import FormatError, printable
from squeeze.numerics.hadamard import turned
from squeeze.quant.activations import ACTIVATIONS
from squeeze.quant.rotate import RotatedCheckpoint

__all__ = ["KV_LEAVES", "SCHEME", "check_scheme", "round_cache", "scaled_cache"]

KV_LEAVES = ("k_scale", "v_scale")
SCHEME = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False}
_GRID = ACTIVATIONS["fp8-tensor"]


def scaled_cache(checkpoint: Checkpoint, tokens: torch.Tensor, device: str = "cpu") -> Checkpoint:
    """The checkpoint with k_scale and v_scale, as its network caches keys and values of tokens [N, L]. Raises
    ModelError where it has no KV cache."""
    size = checkpoint.transforms["R3"] if isinstance(checkpoint, RotatedCheckpoint) and checkpoint.online else 1
    dtype, views = checkpoint.float_type(), {}
    for name, largest in kv_ranges(checkpoint, tokens, device, partial(turned, most=size)).items():
        for leaf, most in zip(KV_LEAVES, largest, strict=True):
            scale, full = _GRID.factor(most).reshape(1).to(dtype), f"{name}.{leaf}"
            views[full] = View(full, DTYPES[dtype], (1,), partial(_constant, scale))
    return checkpoint.showing(views)


def _constant(value: torch.Tensor, index: int | None) -> torch.Tensor:
    return value if index is None else value[index]


def check_scheme(described: Mapping[str, Any]) -> bool:
    """Whether a `quantization_config` rounds the KV cache. Raises FormatError where it does so in another way."""
    scheme = described.get("kv_cache_scheme")
    if scheme is None:
        return False
    told = {key: scheme.get(key) for key in SCHEME} if isinstance(scheme, Mapping) else scheme
    if told != SCHEME:
        raise FormatError(f"a KV cache of {printable(told)} is not supported, only FP8 with one scale a layer")
    return True


def round_cache(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Let a model compute with keys and values as the folder of `checkpoint` has them: in FP8, by its scales. Raises
    FormatError where it has none."""
    for name, attention in attentions(model):
        scales = _scales(checkpoint, name)

        def change(
            keys: torch.Tensor, values: torch.Tensor, most: tuple[torch.Tensor, ...] = scales
        ) -> tuple[torch.Tensor, torch.Tensor]:
            return _GRID(keys, most[0]), _GRID(values, most[1])

        on_cache(attention, change)


def _scales(checkpoint: Checkpoint, attention: str) -> tuple[torch.Tensor, ...]:
    """The largest keys and values that they stand for."""
    names = [f"{attention}.{leaf}" for leaf in KV_LEAVES]
    for name in names:
        if name not in checkpoint.files or checkpoint.info(name).shape not in ((), (1,)):
            raise FormatError(f"{printable(name)}: the KV cache of the folder needs one scale here")
    stored = checkpoint.load(names)
    return tuple(_GRID.largest(stored[name]) for name in names)
