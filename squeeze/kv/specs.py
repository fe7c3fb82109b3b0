"""Policies as words: `kivi:bits=4,group=32`, `transform:2`, `kivi:4+snapkv:512`, `kivi:mean=3`, or a policy's file.

Some need statistics of the model on a text (calibrate.py), and some a cache that sees the whole prompt.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from squeeze.errors import PolicyError

if TYPE_CHECKING:
    from squeeze.kv.base import Policy
    from squeeze.kv.calibrate import Statistics

__all__ = ["CALIBRATED", "check", "evicts", "make", "needs_calibration"]

CALIBRATED: dict[str, dict[str, Any]] = {
    "transform": {"bits": 2.0},
    "lowrank": {"rank": 32, "bits": 4},
}  # and their first parameters
_TOKENS = ("sinks", "window", "block")
_ADDED = {"kivi": {"mean"}, "rotated": {"mean"}, "blockfloat": {"ordered"}}  # parameters that ask for statistics


def _split(words: str) -> tuple[str, dict[str, Any]]:
    """Name and parameters of a policy without eviction; a number without a name is the bits. Raises PolicyError."""
    from squeeze.kv import POLICIES

    name, _, rest = words.partition(":")
    if name not in POLICIES and name not in CALIBRATED:
        raise PolicyError(f"no policy is named {name!r}: choose from {', '.join([*POLICIES, *CALIBRATED])}")
    kind = POLICIES.get(name)
    known = {field.name for field in dataclasses.fields(kind)} if kind else {*CALIBRATED[name], *_TOKENS}
    known = (known | _ADDED.get(name, set())) - {"orders"}
    return name, _options(f"policy {name}", rest, "bits", known)


def _split_eviction(words: str) -> tuple[type[Any], dict[str, Any]]:
    """Kind and parameters; a number without a name is how many tokens stay."""
    from squeeze.kv.evict import EVICTIONS

    name, _, rest = words.partition(":")
    if name not in EVICTIONS:
        raise PolicyError(f"no eviction is named {name!r}: choose from {', '.join(EVICTIONS)}")
    known = [field.name for field in dataclasses.fields(EVICTIONS[name])][1:]
    return EVICTIONS[name], _options(f"eviction {name}", rest, known[0], set(known))


def _options(what: str, words: str, first: str, known: set[str]) -> dict[str, Any]:
    options = {}
    for item in filter(None, words.split(",")):
        key, found, text = item.partition("=")
        if not found:
            key, text = first, item
        if key not in known:
            raise PolicyError(f"{what} has no {key}: it takes {', '.join(sorted(known))}")
        options[key] = _value(key, text)
    return options


def _value(key: str, text: str) -> Any:
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if not 0 <= value < 1 << 31 or (kind is float and key not in ("bits", "mean")):
            raise PolicyError(f"{key} cannot be {text}")
        return value
    if key != "points":
        raise PolicyError(f"{key} is a number, and {text!r} is none")
    return text


def check(spec: str) -> None:
    """Raise PolicyError or FormatError for words that are no policy."""
    from squeeze.kv.describe import is_file, load_policy

    if is_file(spec):
        load_policy(spec)
        return
    base, plus, eviction = spec.partition("+")
    _split(base)
    if plus:
        _split_eviction(eviction)


def needs_calibration(spec: str) -> bool:
    from squeeze.kv.describe import is_file

    if is_file(spec):
        return False
    name, options = _split(spec.partition("+")[0])
    return name in CALIBRATED or bool(set(options) & _ADDED.get(name, set()))


def evicts(policy: Policy) -> bool:
    """Whether a policy gives up tokens or chooses among those of a prompt."""
    from squeeze.kv.evict import EVICTIONS

    return isinstance(policy, tuple(EVICTIONS.values()))


def make(spec: str, model: Any = None, statistics: dict[int, Statistics] | None = None, **defaults: int) -> Policy:
    """The policy that words describe. defaults: sinks and window where the words name none and it codes or evicts.

    Raises PolicyError where they describe none, or one that needs statistics, and FormatError for a file that is none.
    """
    from squeeze.kv.describe import is_file, load_policy

    if is_file(spec):
        return load_policy(spec)
    base, plus, eviction = spec.partition("+")
    name, options = _split(base)
    if name != "full" or plus:
        options = defaults | options
    if needs_calibration(base) and statistics is None:
        raise PolicyError(f"policy {name} needs a text to calibrate on: name one with --calibrate")
    policy = _calibrated(name, options, model, statistics) if statistics else _plain(name, options)
    if plus:
        kind, numbers = _split_eviction(eviction)
        policy = kind(policy, **numbers)
    return policy


def _plain(name: str, options: dict[str, Any]) -> Policy:
    from squeeze.kv import POLICIES

    policy: Policy = POLICIES[name](**options)
    return policy


def _calibrated(name: str, options: dict[str, Any], model: Any, statistics: dict[int, Statistics]) -> Policy:
    from squeeze.kv.blockfloat import channel_orders
    from squeeze.kv.calibrate import transform_policy
    from squeeze.kv.heads import bits_by_head
    from squeeze.kv.lowrank import low_rank_policy

    if name in CALIBRATED:
        options = {**CALIBRATED[name], **options}
        return (transform_policy if name == "transform" else low_rank_policy)(model, statistics, **options)
    mean, ordered = options.pop("mean", None), options.pop("ordered", 0)
    policy: Any = _plain(name, options)
    if ordered:
        return dataclasses.replace(policy, orders=channel_orders(model, statistics, policy))
    return policy if mean is None else bits_by_head(model, statistics, policy, mean)
