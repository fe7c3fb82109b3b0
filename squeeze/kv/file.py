"""A KV cache as a file: safetensors whose tensors are entropy-coded, checked, and without pickle.

What a cache holds comes back to the bit: packed codes, scales, and tokens in full precision, so a cache without a
policy is stored without loss. Coded by codecs/tensors/floats.py; rows of codes also as differences from one token to
the next, where that is shorter. The header names format, version, policy, and digests of the model's config and
weights.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.numpy
import torch
import xxhash

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.codecs.tensors import floats
from squeeze.errors import DamagedError, FormatError, ModelError, PolicyError, SqueezeError
from squeeze.kv import describe, packing
from squeeze.kv.grid import Grid

if TYPE_CHECKING:
    from squeeze.kv.base import Policy
    from squeeze.kv.cache import QuantizedKVCache
    from squeeze.kv.layer import PackedLayer

__all__ = ["load", "save"]

FORMAT, VERSION = "squeeze.kv", 1
_DTYPES = {"U8": torch.uint8, "BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_VOLATILE = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache")


def save(cache: QuantizedKVCache, path: Path | str, model: Any = None) -> int:
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
            payloads[key], records[key] = _encoded(tensor, width)
    description = {
        "format": FORMAT,
        "version": VERSION,
        "policy": describe.described(cache.policy),
        "config": config_digest(cache.config),
        "weights": weights_digest(model) if model is not None else None,
        "layers": [_state(layer) for layer in cache.packed_layers],
        "records": records,
    }
    data = safetensors.numpy.save(payloads, metadata={FORMAT: json.dumps(description)})
    path = Path(path)
    beside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        beside.write_bytes(data)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return len(data)


def load(
    path: Path | str, config: Any, *, policy: Policy | None = None, model: Any = None, device: str = "cpu"
) -> QuantizedKVCache:
    """The cache of a file. policy: needed where it was calibrated, which the file does not hold.

    Raises FormatError and its children for a file that is not one, ModelError where config or weights are not those
    that it was made with, PolicyError where the policy is not the one.
    """
    from squeeze.kv.cache import QuantizedKVCache

    path = Path(path)
    try:
        return _load(path, QuantizedKVCache, config, policy, model, device)
    except SqueezeError as error:
        raise type(error)(f"{path}: {error}") from None


def _load(path: Path, kind: Any, config: Any, policy: Policy | None, model: Any, device: str) -> QuantizedKVCache:
    file = tensorfile.read(path)
    description = _checked(file.metadata)
    if description["config"] != config_digest(config):
        raise ModelError("this cache was made by a model of another config")
    if model is not None and description["weights"] not in (None, weights_digest(model)):
        raise ModelError("this cache was made by a model of other weights")
    made = describe.policy_of(description["policy"], policy)
    if policy is not None and describe.described(policy) != describe.described(made):
        raise PolicyError(f"it was made with {made}, not with the policy given")
    cache: QuantizedKVCache = kind(config, made)
    tensors: dict[str, torch.Tensor] = {}
    if set(description["records"]) != set(file.by_name):
        raise DamagedError("the header's records are not those of its tensors")
    with path.open("rb") as reading:
        for name, record in description["records"].items():
            tensors[name] = _decoded(name, tensorfile.read_tensor(reading, file.by_name[name]), record).to(device)
    if len(description["layers"]) != len(cache.layers):
        raise DamagedError("the header's layers are not those of the config")
    for index, (layer, state) in enumerate(zip(cache.packed_layers, description["layers"], strict=True)):
        mine = {name.split(".", 1)[1]: x for name, x in tensors.items() if name.startswith(f"{index}.")}
        _fill(layer, state, mine)
    return cache


def _tensors(layer: PackedLayer) -> list[tuple[str, torch.Tensor, int]]:
    """Name, tensor, and bits of its codes where it is of codes along tokens or channels, else 0."""
    if not layer.is_initialized:
        return []
    found = [(f"first.{i}", x, 0) for i, x in enumerate(layer.first)]
    found += [(f"recent.{i}", x, 0) for i, x in enumerate(layer.recent)]
    for number, (part, store) in enumerate(zip(layer.parts, layer.stores, strict=True)):
        widths = {"keys.codes": _width(part.keys), "values.codes": _width(part.values)}
        found += [(f"part.{number}.{name}", x, widths.get(name, 0)) for name, x in store.read().items()]
    return found


def _width(coder: Any) -> int:
    """Bits of codes whose rows run along tokens, which differ little from one token to the next."""
    return coder.width if isinstance(coder, Grid) and coder.along == "tokens" and coder.width in (2, 4, 8) else 0


def _state(layer: PackedLayer) -> dict[str, int]:
    return {
        "dropped": layer.dropped,
        "evicted": layer.evicted,
        "coded_tokens": layer.coded_tokens,
        "parts": len(layer.stores),
    }


def _encoded(tensor: torch.Tensor, width: int) -> tuple[np.ndarray, dict[str, Any]]:
    dtype = _NAMES.get(tensor.dtype)
    if dtype is None:
        raise SqueezeError(f"a cache of {tensor.dtype} cannot be saved")
    plain = tensor.detach().cpu().contiguous()
    raw = plain.view(torch.uint8).numpy().reshape(-1) if plain.numel() else np.empty(0, np.uint8)
    candidates = {"rans": floats.encode(raw, dtype) if raw.size else None}
    if width and raw.size:
        candidates["delta"] = floats.encode(_differences(plain, width).numpy().reshape(-1), dtype)
    candidates["stored"] = raw
    coding = min((name for name, data in candidates.items() if data is not None), key=lambda n: candidates[n].size)  # type: ignore[union-attr]
    payload = np.ascontiguousarray(candidates[coding])
    checksum = xxhash.xxh3_64_hexdigest(raw.tobytes())
    return payload, {"coding": coding, "dtype": dtype, "shape": list(plain.shape), "width": width, "xxh3": checksum}


def _differences(codes: torch.Tensor, width: int, back: bool = False) -> torch.Tensor:
    """Packed codes [B, H, n, rows, bytes]: each code less the one before it in its row, modulo 2^width, or `back`."""
    count = codes.shape[-1] * 8 // width
    values = packing.unpack(codes, width, count)
    joined = values.transpose(2, 3).flatten(3)  # rows over all blocks
    if back:
        changed = joined.to(torch.int64).cumsum(-1)
    else:
        changed = joined.to(torch.int64).diff(dim=-1, prepend=joined.new_zeros((*joined.shape[:-1], 1)).to(torch.int64))
    changed = (changed & ((1 << width) - 1)).to(torch.uint8)
    return packing.pack(changed.unflatten(3, (-1, count)).transpose(2, 3), width)


def _decoded(name: str, payload: np.ndarray, record: Any) -> torch.Tensor:
    try:
        dtype, shape, coding, width = (record[key] for key in ("dtype", "shape", "coding", "width"))
        kind, size = _DTYPES[dtype], int(np.prod(shape, dtype=np.int64)) * _DTYPES[dtype].itemsize
        if coding not in ("rans", "delta", "stored") or (coding == "stored" and payload.size != size):
            raise DamagedError(f"tensor {name!r}: its record is impossible")
        raw = payload if coding == "stored" else floats.decode(payload, dtype, size)
        if coding == "delta":
            packed = torch.from_numpy(np.asarray(raw)).view(torch.uint8).view(*shape)
            raw = _differences(packed, width, back=True).contiguous().numpy().reshape(-1)
        raw = np.asarray(raw).view(np.uint8).reshape(-1)
        if xxhash.xxh3_64_hexdigest(raw.tobytes()) != record["xxh3"]:
            raise DamagedError(f"tensor {name!r} does not decode to its checksum: the file has changed")
        return torch.from_numpy(raw.copy()).view(kind).view(*shape) if raw.size else torch.empty(shape, dtype=kind)
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError):
        raise DamagedError(f"tensor {name!r}: its record is impossible") from None


def _checked(metadata: dict[str, str] | None) -> dict[str, Any]:
    if not metadata or FORMAT not in metadata:
        raise FormatError("is a safetensors file, but not a saved KV cache")
    try:
        found = json.loads(metadata[FORMAT])
        version, records, layers = found["version"], found["records"], found["layers"]
        found["policy"]["name"], found["config"], found["weights"]
    except (ValueError, TypeError, KeyError):
        raise DamagedError("the description of the saved KV cache is not readable") from None
    if version != VERSION:
        raise FormatError(f"is a KV cache of version {version}, and this program reads version {VERSION}")
    if not isinstance(records, dict) or not isinstance(layers, list):
        raise DamagedError("the description of the saved KV cache is not readable")
    return dict(found)


def _fill(layer: PackedLayer, state: dict[str, int], tensors: dict[str, torch.Tensor]) -> None:
    if not tensors:
        return
    try:
        pairs = [(tensors[f"{name}.0"], tensors[f"{name}.1"]) for name in ("first", "recent")]
        layer.lazy_initialization(*pairs[1])
        layer.first, layer.recent = pairs
        layer.dropped, layer.evicted = int(state["dropped"]), int(state["evicted"])
        layer.coded_tokens = int(state["coded_tokens"])
        for number, store in enumerate(layer.stores):
            prefix = f"part.{number}."
            fields = {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}
            if fields:
                store.append(fields)
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError):
        raise DamagedError("the tensors do not make up a KV cache of this policy") from None
    if len({store.blocks for store in layer.stores}) > 1:
        raise DamagedError("the tensors do not make up a KV cache of this policy")


def config_digest(config: Any) -> str:
    """SHA-256 of what a config says of the network, without names, versions and dtypes."""
    said = {key: value for key, value in config.to_dict().items() if key not in _VOLATILE}
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()


def weights_digest(model: Any) -> str:
    """XXH3 of all parameters of a model, in the order of their names."""
    digest = xxhash.xxh3_64()
    for name, tensor in sorted(model.named_parameters()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
