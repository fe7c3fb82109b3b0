"""Policy specs: `kivi:bits=4,group=32`, `transform:2`, `kivi:4+snapkv:512`, `kivi:4+hybrid:8`, `kivi:mean=3`, or the
name of a policy file.

Some policies need statistics of the model on a text (statistics.py), and some a cache that sees the whole prompt.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from squeeze.errors import PolicyError
from squeeze.kv.base import Policy
from squeeze.kv.hybrid import Hybrid
from squeeze.kv.policies import (
    CALIBRATED,
    FROM_STATISTICS,
    OF_JOINT_MOMENTS,
    POLICIES,
    WRAPPERS,
    is_file,
    load_policy,
    scalar_types,
)
from squeeze.kv.statistics import KVStatistics

__all__ = ["check_spec", "codes_states", "make_policy", "needs_calibration", "needs_joint_moments"]


def _split(words: str) -> tuple[str, dict[str, Any]]:
    """Return name and parameters of a policy that wraps no other.

    A number without a name is the bits. Raise PolicyError.
    """
    name, _, parameters = words.partition(":")
    if name not in POLICIES and name not in CALIBRATED:
        raise PolicyError(f"policy {name!r} is unknown: choose from {', '.join([*POLICIES, *CALIBRATED])}")
    known = scalar_types(POLICIES[name] if name in POLICIES else CALIBRATED[name])
    if name in POLICIES:
        fields = {field.name for field in dataclasses.fields(POLICIES[name])}
        known |= {key: {decided.type} for key, decided in FROM_STATISTICS.items() if fields.issuperset(decided.fields)}
    return name, _options(f"policy {name}", parameters, "bits", known)


def _split_wrapper(words: str) -> tuple[type[Any], dict[str, Any]]:
    """Return class and parameters of a policy around another one. A number without a name is its second field."""
    name, _, parameters = words.partition(":")
    if name not in WRAPPERS:
        raise PolicyError(f"{name!r} after + is unknown: choose from {', '.join(WRAPPERS)}")
    kind = WRAPPERS[name]
    return kind, _options(name, parameters, dataclasses.fields(kind)[1].name, scalar_types(kind))


def _options(subject: str, words: str, first: str, known: dict[str, set[Any]]) -> dict[str, Any]:
    options = {}
    for item in filter(None, words.split(",")):
        key, equals, text = item.partition("=")
        if not equals:
            key, text = first, item
        if key not in known:
            raise PolicyError(f"{subject} has no {key}: it takes {', '.join(sorted(known))}")
        options[key] = _value(key, text, known[key])
    return options


def _value(key: str, text: str, types: set[Any]) -> Any:
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        fits = kind is int or float in types or key == "bits"  # the policy checks which bits it supports
        if not 0 <= value < 1 << 31 or not fits:
            raise PolicyError(f"{key} cannot be {text}")
        return value
    if str not in types:
        raise PolicyError(f"{key} must be a number, got {text!r}")
    return text


def check_spec(spec: str) -> None:
    """Raise PolicyError or FormatError if a spec is invalid."""
    if is_file(spec):
        load_policy(spec)
        return
    base, *around = spec.split("+")
    _split(base)
    for words in around:
        _split_wrapper(words)


def needs_calibration(spec: str) -> bool:
    """Return whether the policy of a spec is made from statistics of the model."""
    if is_file(spec):
        return False
    name, options = _split(spec.partition("+")[0])
    return name in CALIBRATED or not FROM_STATISTICS.keys().isdisjoint(options)


def needs_joint_moments(spec: str) -> bool:
    """Return whether the policy of a spec is made from moments of several layers together."""
    return not is_file(spec) and _split(spec.partition("+")[0])[0] in OF_JOINT_MOMENTS


def codes_states(spec: str) -> bool:
    """Return whether the policy of a spec codes recurrent states. Raise PolicyError or FormatError if it is invalid."""
    if is_file(spec):
        policy = load_policy(spec)
        return isinstance(policy, Hybrid) and policy.state_coder is not None
    wrappers = [_split_wrapper(words) for words in spec.split("+")[1:]]
    return any(kind is Hybrid and numbers.get("states", 8) == 8 for kind, numbers in wrappers)


def make_policy(
    spec: str, model: Any = None, statistics: dict[int, KVStatistics] | None = None, **defaults: int
) -> Policy:
    """Return the policy of a spec.

    Args:
        spec: The spec.
        model: The model, for policies that are calibrated.
        statistics: Its statistics, for policies that are calibrated.
        defaults: Sinks and window, if the spec does not give them and the policy codes or evicts.

    Raises:
        PolicyError: The spec is invalid, or its policy needs statistics.
        FormatError: The policy file is invalid.
    """
    if is_file(spec):
        return load_policy(spec)
    base, *around = spec.split("+")
    name, options = _split(base)
    if name != "full" or around:
        options = defaults | options
    if needs_calibration(base) and statistics is None:
        raise PolicyError(f"policy {name} needs a text to calibrate on: name one with `calibration`")
    policy = _made(name, options, model, statistics)
    for words in around:
        kind, numbers = _split_wrapper(words)
        policy = kind(policy, **numbers)
    return policy


def _made(name: str, options: dict[str, Any], model: Any, statistics: dict[int, KVStatistics] | None) -> Policy:
    if name in CALIBRATED:
        return CALIBRATED[name](model, statistics, **options)
    numbers = {key: options.pop(key) for key in FROM_STATISTICS if key in options}
    policy: Policy = POLICIES[name](**options)
    for key, number in numbers.items():
        policy = FROM_STATISTICS[key].decide(model, statistics, policy, number)
    return policy
