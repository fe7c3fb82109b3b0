"""All policies by name, and their descriptions in JSON and files.

A file is JSON, {"name": "kivi", "parameters": {"bits": [[4, 2, 4], 8], "window": 64}}. A policy that holds tensors is a
safetensors file with such a description in its header. A new policy is a dataclass in a file of its own and a row of
POLICIES.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import torch
import xxhash
from safetensors.torch import save

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.errors import FormatError, LimitError, PolicyError, printable
from squeeze.kv.archive.calibrate import archive_policy
from squeeze.kv.archive.policy import Archive
from squeeze.kv.base import FullPrecision, Policy
from squeeze.kv.bit_allocation import bits_by_head
from squeeze.kv.blockfloat import BlockFloat, ordered
from squeeze.kv.evict import AdaKV, SinksAndWindow, SnapKV, SoftPrune, innermost
from squeeze.kv.hybrid import Hybrid
from squeeze.kv.kivi import KIVI
from squeeze.kv.lowrank import low_rank_policy
from squeeze.kv.rotated import Rotated
from squeeze.kv.transform import Transform
from squeeze.kv.vidkv import VidKV
from squeeze.kv.waterfill import transform_policy
from squeeze.system import files
from squeeze.system.documents import MAX_FILE, parse
from squeeze.system.limits import Limits
from squeeze.system.storage import local_path

__all__ = [
    "CALIBRATED",
    "FROM_STATISTICS",
    "OF_JOINT_MOMENTS",
    "POLICIES",
    "WITH_TENSORS",
    "WRAPPERS",
    "FromStatistics",
    "describe",
    "digest_of",
    "is_file",
    "load_policy",
    "policy_of",
    "save_policy",
    "scalar_types",
]

# Made of their parameters, which are the fields of a dataclass.
POLICIES: dict[str, type[Any]] = {
    "full": FullPrecision,
    "kivi": KIVI,
    "rotated": Rotated,
    "vidkv": VidKV,
    "blockfloat": BlockFloat,
}

# Made of (model, its statistics, parameters by name), each with a default.
CALIBRATED: dict[str, Callable[..., Policy]] = {
    "transform": transform_policy,
    "lowrank": low_rank_policy,
    "archive": archive_policy,
}

# Those of them that need moments of several layers together.
OF_JOINT_MOMENTS = ("archive",)

# Around another policy, their first field; a number without a name is the second.
WRAPPERS: dict[str, type[Any]] = {
    "window": SinksAndWindow,
    "snapkv": SnapKV,
    "adakv": AdaKV,
    "softprune": SoftPrune,
    "hybrid": Hybrid,
}

# Whose files hold tensors: what `to_tensors` gives and `from_tensors` takes.
WITH_TENSORS: dict[str, type[Any]] = {"transform": Transform, "archive": Archive}


@dataclasses.dataclass(frozen=True)
class FromStatistics:
    """Fields of a policy that are chosen by statistics of the model.

    `decide(model, statistics, policy, number)` returns the new policy. `type` is the type of the number.
    """

    fields: tuple[str, ...]
    type: type[Any]
    decide: Callable[..., Policy]


# Parameters that words may give to every policy of these fields.
FROM_STATISTICS = {
    "mean": FromStatistics(("bits", "value_bits"), float, bits_by_head),
    "ordered": FromStatistics(("orders",), int, ordered),
}


def scalar_types(maker: Callable[..., Any]) -> dict[str, set[Any]]:
    """Return the parameters of a policy that take a single value, with the allowed ones of int, float and str."""

    def members(hint: Any) -> set[Any]:
        return set(get_args(hint)) if get_origin(hint) in (Union, UnionType) else {hint}

    hints = get_type_hints(maker)
    return {name: types for name, hint in hints.items() if (types := members(hint) & {int, float, str})}


_HEADER = "squeeze.kv_policy"
_MOST_NUMBER = 1 << 31  # bound of numbers in parameters


def describe(policy: Policy) -> dict[str, Any]:
    """Return a policy in JSON: its parameters, or a digest if it holds tensors."""
    name = next((name for name, kind in _by_parameters().items() if type(policy) is kind), None)
    if name is None:
        return {"name": type(policy).__name__.lower(), "digest": digest_of(policy)}
    parameters = {field.name: getattr(policy, field.name) for field in dataclasses.fields(_by_parameters()[name])}
    if name in WRAPPERS:
        parameters["policy"] = describe(parameters["policy"])
    return {"name": name, "parameters": parameters}


def policy_of(description: Any, calibrated: Policy | None = None) -> Policy:
    """Return the policy of a description from `describe`.

    Args:
        description: The description, from an untrusted file.
        calibrated: The policy that a digest stands for, if it does.

    Raises:
        FormatError: The description is invalid.
        PolicyError: The calibrated policy is missing or another one, or a parameter is invalid.
    """
    if isinstance(description, dict) and description.keys() == {"name", "digest"}:
        if calibrated is None:
            raise PolicyError("its policy was calibrated and is not in the file: give it as policy=")
        for candidate in (calibrated, innermost(calibrated)):
            if description["digest"] == digest_of(candidate):
                return candidate
        raise PolicyError("the policy given is not the one that it was made with")
    try:
        name, kind = description["name"], _by_parameters()[description["name"]]
        parameters = _tuples(kind, description["parameters"])
        if name in WRAPPERS:
            parameters["policy"] = policy_of(parameters["policy"], calibrated)
        policy: Policy = kind(**parameters)
    except (KeyError, TypeError, AttributeError, RecursionError):
        raise FormatError("its policy is unknown to this version") from None
    if description.keys() != {"name", "parameters"}:
        raise FormatError("its policy is unknown to this version")
    _check_types(kind, parameters)
    return policy


def _by_parameters() -> dict[str, type[Any]]:
    return {**POLICIES, **WRAPPERS}


def _tuples(kind: type[Any], parameters: dict[str, Any]) -> dict[str, Any]:
    """Return parameters with lists as tuples. Raise PolicyError if a list holds anything but numbers."""

    def tupled(value: Any) -> Any:
        return tuple(map(tupled, value)) if isinstance(value, list) else value

    numbers = {name for name, hint in get_type_hints(kind).items() if hint is int and name != "bits"}
    for name, value in parameters.items():
        if name in numbers and not _fits(value, int):
            raise PolicyError(f"{name} must be an integer of at least 0, got '{printable(value)}'")
    return {name: tupled(value) for name, value in parameters.items()}


def _check_types(kind: type[Any], parameters: dict[str, Any]) -> None:
    """Raise PolicyError if a parameter does not have the type of its field."""
    hints = get_type_hints(kind)
    for name, value in parameters.items():
        if hints[name] is not Policy and not _fits(value, hints[name]):
            raise PolicyError(f"{name} cannot be '{printable(value)}'")


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value has the type of an annotation such as int | tuple[int, ...] | None."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return len(kinds) == len(value) and all(map(_fits, value, kinds))
    if hint in (int, float):
        return type(value) in (int, hint) and 0 <= value < _MOST_NUMBER
    return type(value) is hint


def digest_of(policy: Any) -> str:
    """Return a digest of a policy, including the tensors of its coders."""
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
    """Return whether a policy spec names a policy file."""
    return Path(words).suffix in (".json", ".safetensors")


def save_policy(policy: Policy, path: Path | str) -> None:
    """Write a policy as JSON, or as safetensors if it holds tensors. Raise PolicyError if the suffix is wrong."""
    inner: Any = innermost(policy)
    path = local_path(path)
    name = next((name for name, kind in WITH_TENSORS.items() if type(inner) is kind), None)
    if path.suffix != (suffix := ".safetensors" if name else ".json"):
        raise PolicyError(f"{path}: the name of its file must end in {suffix}")
    if name is None:
        files.write_text(path, json.dumps(describe(policy), indent=1) + "\n")
        return
    plain, tensors = inner.to_tensors()
    metadata = {_HEADER: json.dumps({name: plain, "policy": describe(policy)})}
    with files.replacing(path) as file:
        file.write(save(tensors, metadata))


def load_policy(path: Path | str) -> Policy:
    """Read a policy file. Raise FormatError or PolicyError if it is invalid."""
    path = local_path(path)
    try:
        if path.suffix == ".json":
            return policy_of(_json_of(path))
        return _of_tensors(path)
    except (FormatError, LimitError, PolicyError) as error:
        raise type(error)(f"{path}: {error}") from None
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise FormatError(f"{path}: is not a policy file") from None


def _json_of(path: Path) -> Any:
    with path.open("rb") as file:
        text = file.read(MAX_FILE + 1)
    try:
        return parse(text, Limits())
    except FormatError as error:
        raise FormatError(f"is not a policy file: its text {error}") from None


def _of_tensors(path: Path) -> Policy:
    try:
        metadata = tensorfile.read(path).metadata or {}
        header, tensors = parse(metadata[_HEADER], Limits()), tensorfile.load(path)
        name = next(name for name in WITH_TENSORS if name in header)
        inner = WITH_TENSORS[name].from_tensors(header[name], tensors)
    except FormatError as error:
        raise FormatError(f"is not a policy file: {error}") from None
    except (KeyError, TypeError, AttributeError, StopIteration):
        raise FormatError("is not a policy file") from None
    return policy_of(header.get("policy"), inner)
