"""A KV cache as a file: safetensors whose tensors are entropy-coded, checked, and without pickle.

What a cache holds comes back to the bit: packed codes, scales, and tokens in full precision, so a cache without a
policy is stored without loss. The header names format, version, policy, and digests of the model's config and weights;
records.py codes each tensor.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import safetensors.numpy
import torch
import xxhash

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.errors import DamagedError, FormatError, ModelError, PolicyError, SqueezeError
from squeeze.kv.base import Policy
from squeeze.kv.describe import described, policy_of
from squeeze.kv.grouped import GroupedCoder
from squeeze.kv.layer import PackedLayer
from squeeze.kv.records import decoded, encoded
from squeeze.system import files

__all__ = ["load_cache", "save_cache"]

FORMAT, VERSION = "squeeze.kv", 1
_SINKS, _RESIDUAL, _GROUP = "first", "recent", "part"  # in the names of tensors
_VOLATILE = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache")


class Saved(Protocol):
    """What a file holds of a cache."""

    config: Any
    policy: Policy
    layers: Any

    @property
    def packed_layers(self) -> list[PackedLayer]: ...


Cache = TypeVar("Cache", bound=Saved)


def save_cache(cache: Saved, path: Path | str, model: Any = None) -> int:
    """Write a cache; bytes of the file. model: whose weights it belongs to, compared when it is loaded.

    Raises SqueezeError where a layer is of a kind that the file cannot hold.
    """
    if len(cache.packed_layers) != len(cache.layers):
        raise SqueezeError("only caches of attention layers can be saved: this model has states of other kinds")
    payloads: dict[str, np.ndarray] = {}
    records: dict[str, Any] = {}
    for index, layer in enumerate(cache.packed_layers):
        for name, tensor, width in _tensors(layer):
            key = f"{index}.{name}"
            payloads[key], records[key] = encoded(tensor, width)
    description = {
        "format": FORMAT,
        "version": VERSION,
        "policy": described(cache.policy),
        "config": config_digest(cache.config),
        "weights": weights_digest(model) if model is not None else None,
        "layers": [_state(layer) for layer in cache.packed_layers],
        "records": records,
    }
    data = safetensors.numpy.save(payloads, metadata={FORMAT: json.dumps(description)})
    with files.replacing(Path(path)) as file:
        file.write(data)
    return len(data)


def load_cache(
    path: Path | str,
    make: Callable[[Any, Policy], Cache],
    config: Any,
    *,
    policy: Policy | None = None,
    model: Any = None,
    device: str = "cpu",
) -> Cache:
    """The cache of a file, which `make` makes empty. policy: needed where it was calibrated, which the file does not
    hold.

    Raises FormatError and its children for a file that is not one, ModelError where config or weights are not those
    that it was made with, PolicyError where the policy is not the one.
    """
    path = Path(path)
    try:
        saved = tensorfile.read(path)
        description = _checked(saved.metadata)
        cache = make(config, _policy(description, config, policy, model))
        _read(path, saved, description, cache.packed_layers, device)
        return cache
    except SqueezeError as error:
        raise type(error)(f"{path}: {error}") from None


def _policy(description: dict[str, Any], config: Any, policy: Policy | None, model: Any) -> Policy:
    """The file's policy. Raises ModelError and PolicyError where file, config, model and policy do not go together."""
    if description["config"] != config_digest(config):
        raise ModelError("this cache was made by a model of another config")
    if model is not None and description["weights"] not in (None, weights_digest(model)):
        raise ModelError("this cache was made by a model of other weights")
    saved = policy_of(description["policy"], policy)
    if policy is not None and described(policy) != described(saved):
        raise PolicyError(f"it was made with {saved}, not with the policy given")
    return saved


def _read(path: Path, saved: Any, description: dict[str, Any], layers: list[PackedLayer], device: str) -> None:
    """Fill the empty layers of a cache."""
    tensors: dict[str, torch.Tensor] = {}
    if set(description["records"]) != set(saved.by_name):
        raise DamagedError("the header's records are not those of its tensors")
    with path.open("rb") as reading:
        for name, record in description["records"].items():
            tensors[name] = decoded(name, tensorfile.read_tensor(reading, saved.by_name[name]), record).to(device)
    if len(description["layers"]) != len(layers):
        raise DamagedError("the header's layers are not those of the config")
    for index, (layer, state) in enumerate(zip(layers, description["layers"], strict=True)):
        mine = {name.split(".", 1)[1]: x for name, x in tensors.items() if name.startswith(f"{index}.")}
        _fill(layer, state, mine)


def _tensors(layer: PackedLayer) -> list[tuple[str, torch.Tensor, int]]:
    """Name, tensor, and bits of its codes where it is of codes along tokens or channels, else 0."""
    if not layer.is_initialized:
        return []
    tensors = [(f"{_SINKS}.{i}", x, 0) for i, x in enumerate(layer.sinks)]
    tensors += [(f"{_RESIDUAL}.{i}", x, 0) for i, x in enumerate(layer.residual)]
    for number, (group, store) in enumerate(zip(layer.head_groups, layer.stores, strict=True)):
        widths = {"keys.codes": _width(group.keys), "values.codes": _width(group.values)}
        tensors += [(f"{_GROUP}.{number}.{name}", x, widths.get(name, 0)) for name, x in store.read().items()]
    return tensors


def _width(coder: Any) -> int:
    """Bits of codes whose rows run along tokens, which differ little from one token to the next."""
    return (
        coder.width if isinstance(coder, GroupedCoder) and coder.along == "tokens" and coder.width in (2, 4, 8) else 0
    )


def _state(layer: PackedLayer) -> dict[str, int]:
    return {
        "dropped": layer.dropped,
        "evicted": layer.evicted,
        "coded_tokens": layer.coded_tokens,
        "parts": len(layer.stores),
    }


def _checked(metadata: dict[str, str] | None) -> dict[str, Any]:
    if not metadata or FORMAT not in metadata:
        raise FormatError("is a safetensors file, but not a saved KV cache")
    try:
        description = json.loads(metadata[FORMAT])
        version, records, layers = description["version"], description["records"], description["layers"]
        description["policy"]["name"], description["config"], description["weights"]
    except (ValueError, TypeError, KeyError):
        raise DamagedError("the description of the saved KV cache is not readable") from None
    if version != VERSION:
        raise FormatError(f"is a KV cache of version {version}, and this program reads version {VERSION}")
    if not isinstance(records, dict) or not isinstance(layers, list):
        raise DamagedError("the description of the saved KV cache is not readable")
    return dict(description)


def _fill(layer: PackedLayer, state: dict[str, int], tensors: dict[str, torch.Tensor]) -> None:
    if not tensors:
        return
    try:
        sinks, residual = ((tensors[f"{name}.0"], tensors[f"{name}.1"]) for name in (_SINKS, _RESIDUAL))
        layer.lazy_initialization(*residual)
        layer.sinks, layer.residual = sinks, residual
        layer.dropped, layer.evicted = int(state["dropped"]), int(state["evicted"])
        layer.coded_tokens = int(state["coded_tokens"])
        for number, store in enumerate(layer.stores):
            prefix = f"{_GROUP}.{number}."
            fields = {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}
            if fields:
                store.append(fields)
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError):
        raise DamagedError("the tensors do not make up a KV cache of this policy") from None
    if len({store.blocks for store in layer.stores}) > 1:
        raise DamagedError("the tensors do not make up a KV cache of this policy")


def config_digest(config: Any) -> str:
    """SHA-256 of what a config says of the network, without names, versions and dtypes."""
    network = {key: value for key, value in config.to_dict().items() if key not in _VOLATILE}
    return hashlib.sha256(json.dumps(network, sort_keys=True, default=str).encode()).hexdigest()


def weights_digest(model: Any) -> str:
    """XXH3 of all parameters of a model, in the order of their names."""
    digest = xxhash.xxh3_64()
    for name, tensor in sorted(model.named_parameters()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
