"""Policies in JSON, and as files: what saved caches carry, and what `--policy FILE` reads.

A file is JSON, {"name": "kivi", "parameters": {"bits": [[4, 2, 4], 8], "window": 64}}, or, where the policy holds
tensors, safetensors with that JSON in the header. An eviction's parameters hold the policy that it goes around.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, get_type_hints

import torch
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from squeeze.errors import FormatError, PolicyError
from squeeze.kv.base import Policy
from squeeze.kv.evict import innermost
from squeeze.kv.policies import EVICTIONS, POLICIES, WITH_TENSORS

__all__ = ["described", "digest_of", "is_file", "load_policy", "policy_of", "save_policy"]

_HEADER = "squeeze.kv_policy"


def described(policy: Policy) -> dict[str, Any]:
    """A policy in JSON: its parameters, or, where it holds tensors, their digest."""
    name = next((name for name, kind in _by_parameters().items() if type(policy) is kind), None)
    if name is None:
        return {"name": type(policy).__name__.lower(), "digest": digest_of(policy)}
    parameters = {field.name: getattr(policy, field.name) for field in dataclasses.fields(_by_parameters()[name])}
    if name in EVICTIONS:
        parameters["policy"] = described(parameters["policy"])
    return {"name": name, "parameters": parameters}


def policy_of(description: Any, calibrated: Policy | None = None) -> Policy:
    """The inverse of `described`. calibrated: the policy that a digest stands for.

    Raises FormatError for a description that is none, PolicyError where the policy is wanting, another, or impossible.
    """
    if isinstance(description, dict) and "digest" in description:
        if calibrated is None:
            raise PolicyError("its policy was calibrated and is not in the file: give it as policy=")
        for candidate in (calibrated, innermost(calibrated)):
            if description["digest"] == digest_of(candidate):
                return candidate
        raise PolicyError("the policy given is not the one that it was made with")
    try:
        name, kind = description["name"], _by_parameters()[description["name"]]
        parameters = _tuples(kind, description["parameters"])
        if name in EVICTIONS:
            parameters["policy"] = policy_of(parameters["policy"], calibrated)
        policy: Policy = kind(**parameters)
    except (KeyError, TypeError, AttributeError):
        raise FormatError("its policy is unknown to this version") from None
    return policy


def _by_parameters() -> dict[str, type[Any]]:
    return {**POLICIES, **EVICTIONS}


def _tuples(kind: type[Any], parameters: dict[str, Any]) -> dict[str, Any]:
    """Lists as tuples. Raises PolicyError for what is no number where one belongs; bits are the policy's to check."""

    def tupled(value: Any) -> Any:
        return tuple(map(tupled, value)) if isinstance(value, list) else value

    numbers = {name for name, hint in get_type_hints(kind).items() if hint is int and name != "bits"}
    for name, value in parameters.items():
        if name in numbers and (type(value) is not int or value < 0):
            raise PolicyError(f"{name} is a number of tokens or values, and {value!r} is none")
    return {name: tupled(value) for name, value in parameters.items()}


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
    inner: Any = innermost(policy)
    name = next((name for name, kind in WITH_TENSORS.items() if type(inner) is kind), None)
    if Path(path).suffix != (suffix := ".safetensors" if name else ".json"):
        raise PolicyError(f"{path}: the file of this policy ends in {suffix}")
    if name is None:
        Path(path).write_text(json.dumps(described(policy), indent=1) + "\n", "utf-8")
        return
    plain, tensors = inner.to_tensors()
    save_file(tensors, path, metadata={_HEADER: json.dumps({name: plain, "policy": described(policy)})})


def load_policy(path: Path | str) -> Policy:
    """The policy of a file that `save_policy` or a person wrote. Raises FormatError and PolicyError."""
    path = Path(path)
    try:
        if path.suffix == ".json":
            return policy_of(json.loads(path.read_text("utf-8")))
        return _of_tensors(path)
    except (FormatError, PolicyError) as error:
        raise type(error)(f"{path}: {error}") from None
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror or error}") from None
    except ValueError:
        raise FormatError(f"{path}: is no policy file") from None


def _of_tensors(path: Path) -> Policy:
    try:
        with safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {})[_HEADER])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
        name = next(name for name in WITH_TENSORS if name in header)
        return policy_of(header["policy"], WITH_TENSORS[name].from_tensors(header[name], tensors))
    except (SafetensorError, KeyError, TypeError, AttributeError, StopIteration):
        raise FormatError("is no policy file") from None
