"""A KV cache as a file: safetensors with entropy-coded, checksummed tensors, without pickle.

Packed codes, scales and tokens in full precision are restored to the bit, so a cache without a policy is stored
losslessly. The header has the format, its version, the policy, and digests of the model's config and weights. Tensors
are coded by saved.py, which also lays out the file. fit.py checks that they make up a cache.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
import xxhash

from squeeze.errors import DamagedError, ModelError, PolicyError, SqueezeError, printable
from squeeze.kv import saved
from squeeze.kv.archive.policy import Archive
from squeeze.kv.archive.saving import archived, fill_archived
from squeeze.kv.base import HeadGroup, Policy
from squeeze.kv.fit import check_fields, check_numbers, check_states, misfit
from squeeze.kv.grouped import GroupedCoder
from squeeze.kv.layer import PackedLayer
from squeeze.kv.policies import describe, policy_of
from squeeze.kv.saved import STATE, SavedFile, decoded, encoded
from squeeze.kv.store import BlockStore
from squeeze.system import files
from squeeze.system.limits import Limits
from squeeze.system.storage import local_path

__all__ = ["load_cache", "save_cache"]

_SINKS, _RESIDUAL, _GROUP, _CHOSEN = "first", "recent", "part", "chosen"  # in the names of tensors
_VOLATILE = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache")


class Saved(Protocol):
    """A protocol for caches that a file can hold."""

    config: Any
    policy: Policy
    layers: Any

    @property
    def packed_layers(self) -> list[PackedLayer]: ...


Cache = TypeVar("Cache", bound=Saved)


def save_cache(cache: Saved, path: Path | str, model: Any = None, prompt: torch.Tensor | None = None) -> int:
    """Write a cache to a file.

    Args:
        cache: The cache.
        path: The file.
        model: The model that it belongs to, whose weights are compared when it is loaded; None to skip that.
        prompt: The tokens [T] that it has read, which are compared when it is loaded; None to skip that.

    Returns:
        The bytes of the file.

    Raises:
        SqueezeError: The file cannot hold a layer of this kind.
    """
    if len(cache.packed_layers) != len(cache.layers) or any(hasattr(one, "recurrent_states") for one in cache.layers):
        raise SqueezeError("only caches of attention layers can be saved: this model has states of other kinds")
    if isinstance(cache.policy, Archive):
        payloads, records = archived(cache.policy, cache.packed_layers)
    else:
        payloads, records = _coded(cache.packed_layers)
    description = {
        "policy": describe(cache.policy),
        "config": config_digest(cache.config),
        "weights": weights_digest(model) if model is not None else None,
        "prompt": None if prompt is None else {"tokens": len(prompt), "sha256": _prompt_digest(prompt)},
        "layers": [_state(layer) for layer in cache.packed_layers],
        "records": records,
    }
    data = saved.to_bytes(description, payloads)
    with files.replacing(local_path(path)) as file:
        file.write(data)
    return len(data)


def _coded(layers: list[PackedLayer]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the coded tensors of layers and their records, by name."""
    payloads: dict[str, np.ndarray] = {}
    records: dict[str, Any] = {}
    for index, layer in enumerate(layers):
        for name, tensor, width in _tensors(layer):
            key = f"{index}.{name}"
            payloads[key], records[key] = encoded(tensor, width)
    return payloads, records


def load_cache(
    path: Path | str,
    make_cache: Callable[[Any, Policy], Cache],
    config: Any,
    *,
    policy: Policy | None = None,
    model: Any = None,
    prompt: torch.Tensor | None = None,
    device: str = "cpu",
    limits: Limits | None = None,
) -> Cache:
    """Read a cache from a file.

    Args:
        path: The file.
        make_cache: Creates the empty cache of a policy.
        config: The model's config.
        policy: The policy, which is required if it was calibrated: the file has only its digest.
        model: The model, whose weights are compared; None to skip that.
        prompt: Tokens [T] that must begin with those that the cache has read; None to skip that.
        device: The device of the cache.
        limits: Limits on memory.

    Raises:
        FormatError: The file is not a saved cache, or is damaged.
        ModelError: The config or the weights are of another model.
        PolicyError: The policy is missing or another one.
        SqueezeError: The prompt begins with other tokens.
        LimitError: Decoding needs more memory than `limits` allow.
    """
    path, limits = local_path(path), limits or Limits()
    try:
        file = saved.read(path, limits)
        cache = make_cache(config, _policy(file, config, policy, model))
        if prompt is not None:
            _check_prompt(file, prompt)
        _check_limits(file, limits)
        if isinstance(cache.policy, Archive):
            fill_archived(cache.policy, file, cache.packed_layers, device, limits)
        else:
            _fill(file, cache.packed_layers, device)
        if file.prompt and any(layer.get_seq_length() != file.prompt["tokens"] for layer in cache.packed_layers):
            raise misfit()
        return cache
    except SqueezeError as error:
        raise type(error)(f"{path}: {error}") from None


def _policy(file: SavedFile, config: Any, policy: Policy | None, model: Any) -> Policy:
    """Return the file's policy. Raise ModelError or PolicyError if file, config, model and policy do not match."""
    if file.config != config_digest(config):
        raise ModelError("this cache was made by a model of another config")
    if model is not None and file.weights not in (None, weights_digest(model)):
        raise ModelError("this cache was made by a model of other weights")
    saved_policy = policy_of(file.policy, policy)
    if policy is not None and describe(policy) != describe(saved_policy):
        raise PolicyError(f"it was made with {printable(saved_policy)}, not with the policy given")
    return saved_policy


def _check_prompt(file: SavedFile, prompt: torch.Tensor) -> None:
    """Raise SqueezeError if the prompt does not begin with the tokens of the file."""
    if file.prompt is None:
        raise SqueezeError("the cache was saved without its prompt, which cannot be compared")
    count = file.prompt["tokens"]
    if count > len(prompt) or file.prompt["sha256"] != _prompt_digest(prompt[:count]):
        raise SqueezeError(
            f"this cache is of another prompt, of {count} tokens that are not the first of this one: name another file"
        )


def _check_limits(file: SavedFile, limits: Limits) -> None:
    total = sum(record.size for record in file.records.values())
    limits.need_output(total)
    most = max((record.memory for record in file.records.values()), default=0)
    limits.need_memory(file.size + total + most, "the saved KV cache")


def _fill(file: SavedFile, layers: list[PackedLayer], device: str) -> None:
    """Fill the empty layers of a cache."""
    if len(file.layers) != len(layers):
        raise DamagedError("the header's layers are not those of the config")
    names: dict[str, list[str]] = {str(index): [] for index in range(len(layers))}
    for name in file.records:
        index, _, leaf = name.partition(".")
        if index not in names:
            raise misfit()
        names[index].append(leaf)
    known: dict[Any, Any] = {}
    for (index, mine), layer, state in zip(names.items(), layers, file.layers, strict=True):
        tensors = {
            name: decoded(f"{index}.{name}", file.payloads[f"{index}.{name}"], file.records[f"{index}.{name}"])
            for name in mine
        }
        if tensors:
            _fill_layer(layer, state, {name: tensor.to(device) for name, tensor in tensors.items()}, known)
        elif any(state.values()):
            raise misfit()


def _fill_layer(
    layer: PackedLayer, state: dict[str, int], tensors: dict[str, torch.Tensor], known: dict[Any, Any]
) -> None:
    """Fill one layer. `known` caches results of fit.check_fields."""
    try:
        sinks, residual = ((tensors.pop(f"{name}.0"), tensors.pop(f"{name}.1")) for name in (_SINKS, _RESIDUAL))
    except KeyError:
        raise misfit() from None
    check_states(layer, sinks, residual)
    try:
        layer.lazy_initialization(*residual)
    except (IndexError, TypeError, ValueError):  # parameters of the policy that do not fit this layer
        raise misfit() from None
    layer.sinks, layer.residual = sinks, residual
    for kind, number, group, store in _parts(layer):
        prefix = f"{kind}.{number}."
        fields = {name.removeprefix(prefix): tensors.pop(name) for name in list(tensors) if name.startswith(prefix)}
        if fields:
            block = layer.policy.block if kind == _GROUP else layer.selected.block
            check_fields(layer, group, block, fields, known)
            store.fill(fields)
    if tensors or len({store.blocks for store in layer.stores}) > 1:
        raise misfit()
    check_numbers(layer, state)
    layer.dropped, layer.evicted, layer.coded_tokens = (state[name] for name in ("dropped", "evicted", "coded_tokens"))


def _tensors(layer: PackedLayer) -> list[tuple[str, torch.Tensor, int]]:
    """Yield name, tensor, and the bits of its codes if adjacent codes are similar, otherwise 0."""
    if not layer.is_initialized:
        return []
    tensors = [(f"{_SINKS}.{i}", x, 0) for i, x in enumerate(layer.sinks)]
    tensors += [(f"{_RESIDUAL}.{i}", x, 0) for i, x in enumerate(layer.residual)]
    for kind, number, group, store in _parts(layer):
        widths = {"keys.codes": _width(group.keys), "values.codes": _width(group.values)}
        tensors += [(f"{kind}.{number}.{name}", x, widths.get(name, 0)) for name, x in store.read().items()]
    return tensors


def _parts(layer: PackedLayer) -> Iterator[tuple[str, int, HeadGroup, BlockStore]]:
    """Yield the coded blocks of each group of heads, and the tokens that each head chose of a prompt."""
    for number, (group, store) in enumerate(zip(layer.head_groups, layer.stores, strict=True)):
        yield _GROUP, number, group, store
    for head, (group, store) in enumerate(zip(layer.selected.groups, layer.selected.stores, strict=True)):
        yield _CHOSEN, head, group, store


def _width(coder: Any) -> int:
    """Return the bits of codes whose rows run along tokens, which differ little from one token to the next."""
    return (
        coder.width if isinstance(coder, GroupedCoder) and coder.along == "tokens" and coder.width in (2, 4, 8) else 0
    )


def _state(layer: PackedLayer) -> dict[str, int]:
    return {name: getattr(layer, name) for name in STATE[:-1]} | {STATE[-1]: len(layer.stores)}


def config_digest(config: Any) -> str:
    """Return the SHA-256 of a config without names, versions and dtypes."""
    network = {key: value for key, value in config.to_dict().items() if key not in _VOLATILE}
    return hashlib.sha256(json.dumps(network, sort_keys=True, default=str).encode()).hexdigest()


def _prompt_digest(prompt: torch.Tensor) -> str:
    """Return the SHA-256 of tokens as little-endian int64."""
    return hashlib.sha256(prompt.cpu().numpy().astype("<i8").tobytes()).hexdigest()


def weights_digest(model: Any) -> str:
    """Return the XXH3 of all parameters of a model, or of what is stored instead of them, in the order of their
    names.
    """
    digest = xxhash.xxh3_64()
    names = set(model.state_dict())
    stored = [(name, tensor) for name, tensor in model.named_buffers() if name in names]
    for name, tensor in (*sorted(model.named_parameters()), *sorted(stored)):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
