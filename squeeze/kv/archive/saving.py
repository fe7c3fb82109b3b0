"""The tensors of a saved cache whose policy is Archive: first tokens in 16 bits, and coefficients of all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import prod
from typing import Any

import numpy as np
import torch
import xxhash

from squeeze.checkpoint.safetensors import named
from squeeze.errors import DamagedError, SqueezeError
from squeeze.kv.archive import coefficients
from squeeze.kv.archive.policy import Archive, Basis
from squeeze.kv.fit import check_states, misfit
from squeeze.kv.layer import PackedLayer
from squeeze.kv.rotary import apply_rotary
from squeeze.kv.saved import Record, SavedFile, decoded, encoded
from squeeze.system.limits import Limits

__all__ = ["archived", "fill_archived"]

_FIRST, _CODED = "first", "archive"  # in the names of tensors


def archived(policy: Archive, layers: Sequence[PackedLayer]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the coded tensors of a cache and their records, by name.

    Raises:
        SqueezeError: The layers do not hold the same tokens, or are not those that the policy was calibrated on.
    """
    filled = [layer for layer in layers if layer.is_initialized]
    if not filled:
        return {}, {}
    if any(layer.is_sliding or layer.evicted for layer in filled) or len({layer.stored for layer in filled}) != 1:
        raise SqueezeError("an archive needs layers that hold all tokens: this model has a sliding window")
    policy.check_layers({layer.index: (layer.sinks[0].shape[1], layer.sinks[0].shape[3]) for layer in filled})
    payloads, records = {}, {}
    by_number = {layer.index: layer for layer in filled}
    for basis in policy.bases:
        mine = [by_number[layer] for layer in basis.layers]
        key = f"{basis.layers[0]}.{_FIRST}"
        payloads[key], records[key] = encoded(_rounded(torch.cat([x for layer in mine for x in layer.sinks], 1)), 0)
        values = _coefficients(policy, basis, mine)
        key = f"{basis.layers[0]}.{_CODED}"
        payloads[key] = coefficients.encode(values.reshape(-1, basis.kept), basis.magnitudes.numpy())
        digest = xxhash.xxh3_64_hexdigest(values.astype("<i4", copy=False).tobytes())
        records[key] = asdict(Record("archive", "I32", list(values.shape), 0, digest))
    return payloads, records


def _rounded(states: torch.Tensor) -> torch.Tensor:
    """Round float32 to the values of bfloat16, whose low bits then cost nothing."""
    return states.to(torch.bfloat16).float() if states.dtype == torch.float32 else states


def _coefficients(policy: Archive, basis: Basis, layers: Sequence[PackedLayer]) -> np.ndarray:
    """Return the coefficients of all tokens after the first ones, int32 [B, T, K]."""
    parts = []
    for layer in layers:
        keys, values = (x.detach().cpu().float() for x in layer.residual)
        if policy.frequencies is not None:
            keys = apply_rotary(keys, policy.frequencies, layer.sinks[0].shape[2], inverse=True)
        parts += [keys, values]
    states = torch.cat(parts, 1).transpose(1, 2)  # [B, T, m, D]
    return np.stack([policy.quantised(basis, of_one) for of_one in states])


def fill_archived(policy: Archive, file: SavedFile, layers: Sequence[PackedLayer], device: str, limits: Limits) -> None:
    """Fill the empty layers of a cache from a file.

    Raises:
        DamagedError: The file does not fit them.
        LimitError: Its states need more memory than `limits` allow.
    """
    if len(file.layers) != len(layers):
        raise DamagedError("the header's layers are not those of the config")
    if not file.records:
        return
    names = {f"{basis.layers[0]}.{_FIRST}" for basis in policy.bases}
    coded = {f"{basis.layers[0]}.{_CODED}" for basis in policy.bases}
    if file.records.keys() != names | coded or max(policy.bases[-1].layers) >= len(layers):
        raise misfit()
    if any(file.records[name].coding == "archive" for name in names):
        raise misfit()
    _check_limits(policy, file, limits)
    for basis in policy.bases:
        name = f"{basis.layers[0]}.{_FIRST}"
        first = decoded(name, file.payloads[name], file.records[name])
        if first.dim() != 4 or first.shape[1] != len(basis.mean) or first.shape[3] != basis.mean.shape[1]:
            raise misfit()
        _fill(policy, basis, [layers[number] for number in basis.layers], first, _decoded(basis, file), device)


def _check_limits(policy: Archive, file: SavedFile, limits: Limits) -> None:
    """Check the states, which are far larger than the file, before any is decoded."""
    tokens = max(prod(file.records[f"{basis.layers[0]}.{_CODED}"].shape[:-1]) for basis in policy.bases)
    channels = [basis.mean.numel() for basis in policy.bases]
    limits.need_output(2 * tokens * sum(channels))
    limits.need_memory(4 * tokens * (sum(channels) + 4 * max(channels)), "the states of the saved KV cache")


def _decoded(basis: Basis, file: SavedFile) -> np.ndarray:
    """Decode the coefficients of a basis, int32 [B, T, K]."""
    name = f"{basis.layers[0]}.{_CODED}"
    record: Record = file.records[name]
    if record.coding != "archive" or len(record.shape) != 3 or record.shape[2] != basis.kept or not record.shape[0]:
        raise misfit()
    rows = record.shape[0] * record.shape[1]
    try:
        values = coefficients.decode(file.payloads[name], rows, basis.magnitudes.numpy())
    except DamagedError as error:
        raise DamagedError(f"{named(name)}: {error}") from None
    if xxhash.xxh3_64_hexdigest(values.astype("<i4", copy=False).tobytes()) != record.xxh3:
        raise DamagedError(f"{named(name)} has a checksum mismatch: the file is damaged")
    return values.reshape(record.shape)


def _fill(
    policy: Archive,
    basis: Basis,
    layers: Sequence[PackedLayer],
    first: torch.Tensor,
    values: np.ndarray,
    device: str,
) -> None:
    """Fill the layers of a basis with their first tokens [B, m, S, D], and the states of the coefficients."""
    if first.shape[0] != len(values):
        raise misfit()
    states = torch.stack([policy.restored(basis, of_one) for of_one in values]).transpose(1, 2)  # [B, m, T, D]
    of_layers = zip(layers, *(x.split(2 * basis.heads, 1) for x in (first, states)), strict=True)
    for layer, exact, restored in of_layers:
        keys, others = restored.split(basis.heads, 1)
        if policy.frequencies is not None:
            keys = apply_rotary(keys, policy.frequencies, first.shape[2])
        sinks, residual = exact.split(basis.heads, 1), tuple(x.to(first.dtype) for x in (keys, others))
        check_states(layer, sinks, residual)
        layer.lazy_initialization(*(x.to(device) for x in residual))
        layer.sinks, layer.residual = (tuple(x.to(device).contiguous() for x in pair) for pair in (sinks, residual))
