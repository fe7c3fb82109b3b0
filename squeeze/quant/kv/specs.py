"""Policies as words: `kivi:bits=4,group=32`, `transform:2`; and those that a text must be read for first."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from squeeze.errors import PolicyError

if TYPE_CHECKING:
    from squeeze.quant.kv.base import Policy
    from squeeze.quant.kv.calibrate import Statistics

__all__ = ["CALIBRATED", "make", "needs_calibration", "split"]

CALIBRATED: dict[str, dict[str, Any]] = {
    "transform": {"bits": 2.0},
    "lowrank": {"rank": 32, "bits": 4},
}  # and their first parameters


def split(spec: str) -> tuple[str, dict[str, Any]]:
    """Name and parameters; a number without a name is the bits. Raises PolicyError."""
    from squeeze.quant.kv import POLICIES

    name, _, rest = spec.partition(":")
    if name not in POLICIES and name not in CALIBRATED:
        raise PolicyError(f"no policy is named {name!r}: choose from {', '.join([*POLICIES, *CALIBRATED])}")
    options = {}
    for item in filter(None, rest.split(",")):
        key, found, text = item.partition("=")
        if not found:
            key, text = "bits", item
        options[key] = _value(key, text)
    kind = POLICIES.get(name)
    known = (
        {field.name for field in dataclasses.fields(kind)} if kind else {*CALIBRATED[name], "sinks", "window", "block"}
    )  # type: ignore[arg-type]
    if unknown := set(options) - known:
        raise PolicyError(f"policy {name} has no {unknown.pop()}: it takes {', '.join(sorted(known))}")
    return name, options


def _value(key: str, text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    if key != "points":
        raise PolicyError(f"{key} is a number, and {text!r} is none")
    return text


def needs_calibration(spec: str) -> bool:
    return split(spec)[0] in CALIBRATED


def make(spec: str, model: Any = None, statistics: dict[int, Statistics] | None = None) -> Policy:
    """The policy that words describe. Raises PolicyError where they describe none, or one that needs statistics."""
    from squeeze.quant.kv import POLICIES
    from squeeze.quant.kv.calibrate import transform_policy
    from squeeze.quant.kv.lowrank import low_rank_policy

    name, options = split(spec)
    if name in POLICIES:
        policy: Policy = POLICIES[name](**options)
        return policy
    if statistics is None:
        raise PolicyError(f"policy {name} needs a text to calibrate on: name one with --calibrate")
    options = {**CALIBRATED[name], **options}
    return (transform_policy if name == "transform" else low_rank_policy)(model, statistics, **options)
