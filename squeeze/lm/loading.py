"""Loading of a model's weights: from a cache on disk, or converted (sources.py, convert.py) and then cached.

The cache has <identity>.safetensors for each model. For each source that was converted, a file named by its fingerprint
has the model's identity and the digest of its tokenizer. Sources with the same weights and tokens share a model, and
may differ in how they cut text into tokens. If the cache cannot be read or written, loading works without it, more
slowly.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from squeeze.errors import ModelError
from squeeze.lm import adapter as adapters, tensor_files as tensorfile
from squeeze.lm.config import Config
from squeeze.lm.convert import convert
from squeeze.lm.sources import READ_ERRORS, damage_as_model_error, fingerprint, open_source
from squeeze.lm.tensor_files import MappedFile
from squeeze.lm.weights import IDENTITY_TAG, Layer, Matrix, Weights
from squeeze.system import cache

__all__ = ["cached", "load"]

_IDENTITY = re.compile(r"[0-9a-f]{8,64}")
_LAYOUT = "2"  # version of cached files: packing, names of tensors


def cache_folder() -> Path:
    """Return the folder of converted models."""
    return cache.root() / "models"


def cached_file(identity: str) -> MappedFile | None:
    """Return the file of the model whose identity starts with these digits, or None if it is missing or damaged."""
    if not _IDENTITY.fullmatch(identity):
        return None
    try:
        path = next(cache_folder().glob(f"{identity}*.safetensors"), None)
        if path is None:
            return None
        file = MappedFile(path)
        expected = {"identity": path.stem, "layout": _LAYOUT}
        return file if expected.items() <= file.metadata.items() and file.is_sound() else None
    except (OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _put(identity: str, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    with suppress(OSError, RuntimeError):
        tensorfile.write(cache_folder() / f"{identity}.safetensors", tensors, {**metadata, "layout": _LAYOUT})


def _known_as(fingerprint: str) -> tuple[str, str] | None:
    """Return the identity and the tokenizer's digest that a source with this fingerprint was converted to, or None."""
    with suppress(OSError, RuntimeError, ValueError):
        identity, tokenizer = (cache_folder() / "sources" / fingerprint).read_text("ascii").split()
        return identity, tokenizer
    return None


def _remember(fingerprint: str, identity: str, tokenizer: str) -> None:
    text = f"{identity} {tokenizer_digest(tokenizer)}"
    with suppress(OSError, RuntimeError):
        cache.replace(cache_folder() / "sources" / fingerprint, [np.frombuffer(text.encode(), np.uint8)])


def tokenizer_digest(tokenizer: str) -> str:
    """Return the SHA-256 of the text of a tokenizer.json."""
    return hashlib.sha256(tokenizer.encode()).hexdigest()


_OUTER = ("embedding", "embedding_scales", "head", "leaves")
_MATRICES = ("qkv", "output", "gate_up", "down")


def load(path: Path, adapter: Path | None = None) -> Weights:
    """Return the weights of a GGUF file or a Hugging Face folder, from the cache or converted.

    Args:
        path: of the model.
        adapter: path of an adapter to add, or None.

    Raises:
        ModelError: if the model is missing, damaged, or of an architecture that is not supported.
    """
    if not path.exists():
        raise ModelError(f"{path}: no such model; give a .gguf file or a folder with config.json")
    with damage_as_model_error(path):
        added = adapters.load(adapter) if adapter else None
        source = fingerprint(path, IDENTITY_TAG.decode() + (added.digest if added else ""))
        weights = _from_cache(source) or _converted(path, added, source)
    return replace(weights, name=path.resolve().name) if path.is_dir() else weights


def _from_cache(source: str) -> Weights | None:
    """Return the cached weights of a source by its fingerprint, or None.

    It is None if another source of the same weights, which cuts text differently, has replaced its tokenizer.
    """
    if (known := _known_as(source)) is None:
        return None
    identity, tokenizer = known
    weights = cached(identity)
    return weights if weights and tokenizer_digest(weights.tokenizer) == tokenizer else None


def _converted(path: Path, adapter: adapters.Adapter | None, fingerprinted: str) -> Weights:
    source = open_source(path)
    converted = convert(adapters.add_adapter(source, adapter) if adapter else source)
    _put(converted.identity, *_to_file(converted))
    _remember(fingerprinted, converted.identity, converted.tokenizer)
    weights = cached(converted.identity)
    return weights if weights and weights.tokenizer == converted.tokenizer else converted


def cached(identity: str) -> Weights | None:
    """Return the converted model of this identity, or None if the cache does not have it."""
    file = cached_file(identity)
    try:
        return None if file is None else _from_file(file)
    except READ_ERRORS:
        return None


def _to_file(weights: Weights) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the tensors and metadata of a cached model."""
    tensors: dict[str, np.ndarray] = {}

    def add(name: str, value: np.ndarray | Matrix | None) -> None:
        if isinstance(value, Matrix):
            tensors[f"{name}.values"], tensors[f"{name}.scales"] = value.values, value.scales
        elif value is not None:
            tensors[name] = value

    for name in _OUTER:
        add(name, getattr(weights, name))
    for i, layer in enumerate(weights.layers):
        for field in fields(Layer):
            add(f"{i}.{field.name}", getattr(layer, field.name))
    tensors["token_lengths"] = np.array([len(token) for token in weights.tokens], np.int32)
    tensors["token_bytes"] = np.frombuffer(b"".join(weights.tokens), np.uint8)
    tensors["tokenizer"] = np.frombuffer(weights.tokenizer.encode(), np.uint8)
    metadata = {"config": json.dumps(weights.config.to_json()), "name": weights.name, "identity": weights.identity}
    return tensors, metadata


def _from_file(file: MappedFile) -> Weights:
    config = Config.from_json(json.loads(file.metadata["config"]))

    def array(name: str) -> np.ndarray | None:
        return file.raw(name) if name in file.tensors else None

    def matrix(name: str, inputs: int) -> Matrix:
        scales = file.raw(f"{name}.scales")
        return Matrix(file.raw(f"{name}.values"), scales, len(scales), inputs)

    inputs = {"output": config.heads * config.head_size, "down": config.feed_forward}

    def part(i: int, field: str) -> np.ndarray | Matrix | None:
        if field in _MATRICES:
            return matrix(f"{i}.{field}", inputs.get(field, config.width))
        return array(f"{i}.{field}")

    layers: list[Any] = [{f.name: part(i, f.name) for f in fields(Layer)} for i in range(config.layers)]
    ends = np.cumsum(file.raw("token_lengths")).tolist()
    text = file.raw("token_bytes").tobytes()
    return Weights(
        config=config,
        layers=tuple(Layer(**parts) for parts in layers),
        embedding=file.raw("embedding"),
        embedding_scales=file.raw("embedding_scales"),
        head=matrix("head", config.width),
        leaves=file.raw("leaves"),
        tokens=tuple(text[start:end] for start, end in zip([0, *ends], ends, strict=False)),
        name=file.metadata["name"],
        identity=file.metadata["identity"],
        tokenizer=file.raw("tokenizer").tobytes().decode(),
    )
