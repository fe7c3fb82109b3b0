"""All policies by the names that words and files know them by: specs.py, describe.py and the commands follow from here.

A new policy is a dataclass in a file of its own and a row of POLICIES.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from squeeze.kv.base import Policy
from squeeze.kv.bit_allocation import bits_by_head
from squeeze.kv.blockfloat import BlockFloat, ordered
from squeeze.kv.evict import AdaKV, SinksAndWindow, SnapKV, SoftPrune
from squeeze.kv.full import FullPrecision
from squeeze.kv.kivi import KIVI
from squeeze.kv.lowrank import low_rank_policy
from squeeze.kv.rotated import Rotated
from squeeze.kv.transform import Transform
from squeeze.kv.vidkv import VidKV
from squeeze.kv.waterfill import transform_policy

__all__ = ["CALIBRATED", "EVICTIONS", "FROM_STATISTICS", "POLICIES", "WITH_TENSORS", "FromStatistics", "scalar_types"]

# Made of their parameters, which are the fields of a dataclass.
POLICIES: dict[str, type[Any]] = {
    "full": FullPrecision,
    "kivi": KIVI,
    "rotated": Rotated,
    "vidkv": VidKV,
    "blockfloat": BlockFloat,
}

# Made of (model, its statistics, parameters by name), each with a default.
CALIBRATED: dict[str, Callable[..., Policy]] = {"transform": transform_policy, "lowrank": low_rank_policy}

# Around another policy, their first field; the second is how many tokens stay.
EVICTIONS: dict[str, type[Any]] = {"window": SinksAndWindow, "snapkv": SnapKV, "adakv": AdaKV, "softprune": SoftPrune}

# Whose files hold tensors: what `to_tensors` gives and `from_tensors` takes.
WITH_TENSORS: dict[str, type[Any]] = {"transform": Transform}


@dataclasses.dataclass(frozen=True)
class FromStatistics:
    """Fields of a policy that statistics of the model decide: decide(model, statistics, policy, number) makes the new
    policy of a number of this type."""

    fields: tuple[str, ...]
    type: type[Any]
    decide: Callable[..., Policy]


# Parameters that words may give to every policy of these fields.
FROM_STATISTICS = {
    "mean": FromStatistics(("bits", "value_bits"), float, bits_by_head),
    "ordered": FromStatistics(("orders",), int, ordered),
}


def scalar_types(maker: Callable[..., Any]) -> dict[str, set[Any]]:
    """Parameters of a policy's class or function that take a single value: which of int, float and str it may be."""

    def members(hint: Any) -> set[Any]:
        return set(get_args(hint)) if get_origin(hint) in (Union, UnionType) else {hint}

    hints = get_type_hints(maker)
    return {name: types for name, hint in hints.items() if (types := members(hint) & {int, float, str})}
