"""Checks that tensors from a file make up a layer of a cache: shapes, dtypes and numbers must fit the policy.

Attention reads the fields of a layer without checking shapes, so nothing invalid may get there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from squeeze.errors import DamagedError, SqueezeError
from squeeze.kv.base import Coder, HeadGroup
from squeeze.kv.layer import PackedLayer
from squeeze.kv.store import Fields
from squeeze.kv.transform import TransformCoder

__all__ = ["check_fields", "check_numbers", "check_states", "misfit"]

_MOST_HEADS, _MOST_CHANNELS = 1 << 16, 1 << 12
_MOST_VALUES = 1 << 22  # of one head and block

Kinds = dict[str, tuple[tuple[int, ...], torch.dtype]]  # of the fields of one head and block


def misfit() -> DamagedError:
    """Return the error for tensors that do not fit."""
    return DamagedError("the tensors do not make up a KV cache of this policy")


def check_states(layer: PackedLayer, sinks: tuple[torch.Tensor, ...], residual: tuple[torch.Tensor, ...]) -> None:
    """Raise DamagedError if keys and values [B, H, tokens, D] do not match each other."""
    states = (*sinks, *residual)
    if any(x.dim() != 4 or x.dtype != states[0].dtype or not x.dtype.is_floating_point for x in states):
        raise misfit()
    batch, heads = states[0].shape[:2]
    if not (batch > 0 and 0 < heads <= _MOST_HEADS) or any(x.shape[:2] != (batch, heads) for x in states):
        raise misfit()
    if any(not 0 < x.shape[3] <= _MOST_CHANNELS for x in states):
        raise misfit()
    if any(one.shape[3] != other.shape[3] for one, other in zip(sinks, residual, strict=True)):
        raise misfit()
    if any(keys.shape[2] != values.shape[2] for keys, values in (sinks, residual)):
        raise misfit()
    if sinks[0].shape[2] > layer.sink_count and not layer.policy.adds_sinks:
        raise misfit()


def check_numbers(layer: PackedLayer, state: Mapping[str, int]) -> None:
    """Raise DamagedError if a filled layer cannot have these numbers."""
    block, coded = layer.policy.block, state["coded_tokens"]
    if layer.sliding_window is not None and state["dropped"] and layer.stored < layer.sliding_window - 1:
        raise misfit()
    if (
        (state["dropped"] and not layer.is_sliding)
        or (layer.selected.tokens and layer.is_sliding)
        or (state["evicted"] and (layer.is_sliding or not layer.policy.evicts))
        or state["parts"] != len(layer.stores)
        or coded < layer.blocks * block + (layer.selected.tokens if block else 0)
        or (coded % block if block and layer.stores else coded)
    ):
        raise misfit()


def check_fields(layer: PackedLayer, group: HeadGroup, block: int, fields: Fields, known: dict[Any, Kinds]) -> None:
    """Raise DamagedError if the fields are not what the coders of a group write.

    Args:
        layer: The layer.
        group: The coders.
        block: Tokens of a block.
        fields: The fields.
        known: Cached results of earlier calls.
    """
    batch, heads = layer.residual[0].shape[:2]
    heads = heads if group.heads is None else len(group.heads)
    blocks = next(iter(fields.values())).shape[2:3]
    expected: Kinds = {}
    for kind, coder, like in zip(("keys", "values"), (group.keys, group.values), layer.residual, strict=True):
        for name, shape_and_dtype in _kinds(coder, block, like.shape[3], like.dtype, known).items():
            expected[f"{kind}.{name}"] = shape_and_dtype
    if fields.keys() != expected.keys():
        raise misfit()
    for name, (trailing, dtype) in expected.items():
        if fields[name].dtype != dtype or fields[name].shape != (batch, heads, *blocks, *trailing):
            raise misfit()


def _kinds(coder: Coder, block: int, size: int, dtype: torch.dtype, known: dict[Any, Kinds]) -> Kinds:
    """Return the shape and dtype of each field that a coder writes for one block of a head.

    A TransformCoder knows them. Any other coder codes a block of zeros and decodes it again.
    """
    if block * size > _MOST_VALUES:
        raise misfit()
    if isinstance(coder, TransformCoder):
        return coder.kinds(block, size)
    key = (coder, block, size, dtype)
    if key not in known:
        try:
            fields = coder.encode(torch.zeros((1, 1, 1, block, size), dtype=dtype), 0)
            shape = coder.decode(fields, 0, dtype).shape
        except SqueezeError:
            raise
        except Exception:  # whatever the parameters of a file make of a coder
            raise misfit() from None
        if shape != (1, 1, 1, block, size):
            raise misfit()
        known[key] = {name: (tuple(field.shape[3:]), field.dtype) for name, field in fields.items()}
    return known[key]
