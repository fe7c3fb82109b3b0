"""Policies in JSON, and as files: what saved caches carry, and what `--policy FILE` reads.

A file is JSON, {"name": "kivi", "parameters": {"bits": [[4, 2, 4], 8], "window": 64}}, or, where the policy holds
tensors, safetensors with that JSON in the header. An eviction's parameters hold the policy that it goes around.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import xxhash

from squeeze.errors import FormatError, PolicyError
from squeeze.kv import specs
from squeeze.kv.evict import EVICTIONS

if TYPE_CHECKING:
    from squeeze.kv.base import Policy
    from squeeze.kv.transform import TransformCoder

__all__ = ["described", "digest_of", "is_file", "load_policy", "policy_of", "save_policy"]

_HEADER = "squeeze.kv_policy"
_NUMBERS = ("sinks", "window", "block", "group", "share", "observed", "pool")
_TENSORS = ("into", "back", "mean", "weights")  # of a TransformCoder


def described(policy: Policy) -> dict[str, Any]:
    """A policy in JSON: its parameters, or, where it holds tensors, their digest."""
    from squeeze.kv import POLICIES

    kinds = {**POLICIES, **EVICTIONS}
    name = next((name for name, kind in kinds.items() if type(policy) is kind), None)
    if name is None:
        return {"name": type(policy).__name__.lower(), "digest": digest_of(policy)}
    parameters = {field.name: getattr(policy, field.name) for field in dataclasses.fields(kinds[name])}
    if name in EVICTIONS:
        parameters["policy"] = described(parameters["policy"])
    return {"name": name, "parameters": parameters}


def policy_of(description: Any, calibrated: Policy | None = None) -> Policy:
    """The inverse of `described`. calibrated: the policy that a digest stands for.

    Raises FormatError for a description that is none, PolicyError where the policy is wanting, another, or impossible.
    """
    from squeeze.kv import POLICIES

    if isinstance(description, dict) and "digest" in description:
        if calibrated is None:
            raise PolicyError("its policy was calibrated and is not in the file: give it as policy=")
        for found in (calibrated, _inner(calibrated)):
            if description["digest"] == digest_of(found):
                return found
        raise PolicyError("the policy given is not the one that it was made with")
    try:
        name, parameters = description["name"], _tuples(description["parameters"])
        if name in EVICTIONS:
            parameters["policy"] = policy_of(parameters["policy"], calibrated)
        made: Policy = {**POLICIES, **EVICTIONS}[name](**parameters)
    except (KeyError, TypeError, AttributeError):
        raise FormatError("its policy is unknown to this version") from None
    return made


def _inner(policy: Any) -> Policy:
    """What an eviction goes around; any other policy itself."""
    found: Policy = _inner(policy.policy) if specs.evicts(policy) else policy
    return found


def _tuples(parameters: dict[str, Any]) -> dict[str, Any]:
    """Lists as tuples. Raises PolicyError for what is no number where one belongs."""

    def turned(value: Any) -> Any:
        return tuple(map(turned, value)) if isinstance(value, list) else value

    for name in set(_NUMBERS) & set(parameters):
        if type(parameters[name]) is not int or parameters[name] < 0:
            raise PolicyError(f"{name} is a number of tokens or values, and {parameters[name]!r} is none")
    return {name: turned(value) for name, value in parameters.items()}


def digest_of(policy: Any) -> str:
    """Of all that a policy holds, its coders' tensors included."""
    digest = xxhash.xxh3_64()

    def take(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        elif isinstance(value, tuple):
            for item in value:
                take(item)
        elif dataclasses.is_dataclass(value):
            for field in dataclasses.fields(value):
                take(getattr(value, field.name))
        else:
            digest.update(repr(value).encode())

    take(policy)
    return digest.hexdigest()


def is_file(words: str) -> bool:
    """Whether the words of a policy are the name of a policy file."""
    return Path(words).suffix in (".json", ".safetensors")


def save_policy(policy: Policy, path: Path | str) -> None:
    """Write a policy: as JSON, or as safetensors where it holds tensors. Raises PolicyError for a wrong suffix."""
    from safetensors.torch import save_file

    from squeeze.kv.transform import Transform

    inner: Any = _inner(policy)
    calibrated = isinstance(inner, Transform)
    if Path(path).suffix != (suffix := ".safetensors" if calibrated else ".json"):
        raise PolicyError(f"{path}: the file of this policy ends in {suffix}")
    if not calibrated:
        Path(path).write_text(json.dumps(described(policy), indent=1) + "\n", "utf-8")
        return
    plain = {name: getattr(inner, name) for name in ("bits", "sinks", "window", "block")}
    plain["widths"] = [[[coder.widths for coder in pair] for pair in layer] for layer in inner.coders]
    tensors = {
        f"{layer}.{head}.{kind}.{name}": getattr(coder, name).contiguous()
        for layer, heads in enumerate(inner.coders)
        for head, pair in enumerate(heads)
        for kind, coder in enumerate(pair)
        for name in _TENSORS
    }
    turned = next((pair[0].frequencies for layer in inner.coders for pair in layer), None)
    if turned is not None:
        tensors["frequencies"] = turned
    header = {"transform": plain, "policy": described(policy)}
    save_file(tensors, path, metadata={_HEADER: json.dumps(header)})


def load_policy(path: Path | str) -> Policy:
    """The policy of a file that `save_policy` or a person wrote. Raises FormatError and PolicyError."""
    path = Path(path)
    try:
        if path.suffix == ".json":
            return policy_of(json.loads(path.read_text("utf-8")))
        return _transform_of(path)
    except (FormatError, PolicyError) as error:
        raise type(error)(f"{path}: {error}") from None
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror or error}") from None
    except ValueError:
        raise FormatError(f"{path}: is no policy file") from None


def _transform_of(path: Path) -> Policy:
    from safetensors import SafetensorError, safe_open

    from squeeze.kv.transform import Transform

    try:
        with safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {})[_HEADER])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
        plain = header["transform"]
        layers = []
        for layer, heads in enumerate(plain.pop("widths")):
            pairs = []
            for head, widths in enumerate(heads):
                places = [f"{layer}.{head}.{kind}" for kind in (0, 1)]
                keys, values = (_coder(place, width, tensors) for place, width in zip(places, widths, strict=True))
                pairs.append((keys, values))
            layers.append(tuple(pairs))
        return policy_of(header["policy"], Transform(tuple(layers), **plain))
    except (SafetensorError, KeyError, TypeError, AttributeError):
        raise FormatError("is no policy file") from None


def _coder(place: str, widths: list[int], tensors: dict[str, torch.Tensor]) -> TransformCoder:
    from squeeze.kv.transform import TransformCoder

    into, back, mean, weights = (tensors[f"{place}.{name}"] for name in _TENSORS)
    turned = tensors.get("frequencies") if place.endswith(".0") else None
    return TransformCoder(tuple(widths), into, back, mean, weights, turned)
