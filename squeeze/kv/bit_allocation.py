"""Bit allocation among heads, for policies with a number of bits per head.

The loss that an error e of a head's keys or values causes is e^T F e / 2 with the Fisher information F of
statistics.py. It is measured on the calibration sample with the policy's own coder. Bits are then added head by head,
the steepest decrease of the loss per bit first (Shoham and Gersho, "Efficient bit allocation for an arbitrary set of
quantizers", 1988).
"""

from __future__ import annotations

import dataclasses
import heapq
from typing import Any

from squeeze.errors import PolicyError
from squeeze.kv.base import Policy
from squeeze.kv.rotary import frequencies_of
from squeeze.kv.statistics import KVStatistics, costs_of

__all__ = ["bits_by_head"]

_WIDTHS = (2, 3, 4, 8)  # 1 bit is left out: its errors are too large for a quadratic estimate of the loss

Place = tuple[int, int, int]  # layer; 0 for keys, 1 for values; KV head


def bits_by_head(model: Any, statistics: dict[int, KVStatistics], policy: Any, bits: float) -> Policy:
    """Return the policy with bits for each head.

    Args:
        model: The model.
        statistics: Its statistics.
        policy: A policy with `bits` and `value_bits`.
        bits: The mean bits per value, including scales.

    Raises:
        PolicyError: The bits are fewer than two plus scales, or the policy has no choice of bits.
    """
    if not {"bits", "value_bits"} <= {field.name for field in dataclasses.fields(policy)}:
        raise PolicyError(f"{type(policy).__name__} does not support bits per head")
    widths = _allocated(_costs(model, statistics, policy), bits)
    best = [
        tuple(
            tuple(widths[layer, kind, head] for head in range(statistics[layer].sample[0].shape[1]))
            if layer in statistics
            else _WIDTHS[0]
            for layer in range(max(statistics) + 1)
        )
        for kind in (0, 1)
    ]
    allocated: Policy = dataclasses.replace(policy, bits=best[0], value_bits=best[1])
    return allocated


def _costs(model: Any, statistics: dict[int, KVStatistics], policy: Any) -> dict[Place, dict[int, tuple[float, float]]]:
    """Return for each head and number of bits: the bits per value including scales, and the loss in nats per token."""
    frequencies = frequencies_of(model)
    costs: dict[Place, dict[int, tuple[float, float]]] = {}
    for width in _WIDTHS:
        same = dataclasses.replace(policy, bits=width, value_bits=width)
        for layer, states in statistics.items():
            (group,) = same.head_groups(layer, states.sample[0].shape[1])
            for kind, coder in enumerate((group.keys, group.values)):
                size = coder.bits(policy.block, states.sample[kind].shape[-1])
                heads = costs_of(coder, states, kind, policy.block, policy.sinks, frequencies)
                for head, cost in enumerate(heads.tolist()):
                    costs.setdefault((layer, kind, head), {})[width] = size, cost
    return costs


def _allocated(costs: dict[Place, dict[int, tuple[float, float]]], bits: float) -> dict[Place, int]:
    widths = {place: _hull(known) for place, known in costs.items()}
    spent = sum(costs[place][hull[0]][0] for place, hull in widths.items())
    budget = bits * len(costs)
    if spent > budget + 1e-9:
        raise PolicyError(f"expected at least {spent / len(costs):.3f} bits per value, got {bits}")
    steps = dict.fromkeys(costs, 0)  # taken along the hull
    heap: list[tuple[float, Place]] = []

    def offer(place: Place) -> None:
        if steps[place] + 1 < len(widths[place]):
            (a, b), (c, d) = (costs[place][widths[place][steps[place] + step]] for step in (0, 1))
            heapq.heappush(heap, ((d - b) / (c - a), place))

    for place in costs:
        offer(place)
    while heap:
        _, place = heapq.heappop(heap)
        current, following = (costs[place][widths[place][steps[place] + step]][0] for step in (0, 1))
        if spent + following - current > budget + 1e-9:
            continue
        spent += following - current
        steps[place] += 1
        offer(place)
    return {place: widths[place][step] for place, step in steps.items()}


def _hull(known: dict[int, tuple[float, float]]) -> list[int]:
    """Return the numbers of bits on the lower convex hull of loss over bits, ascending."""
    hull: list[int] = []
    for width in sorted(known):
        while len(hull) > 1 and _slope(known, hull[-2], hull[-1]) >= _slope(known, hull[-1], width):
            hull.pop()
        if hull and known[width][1] >= known[hull[-1]][1]:
            continue
        hull.append(width)
    return hull


def _slope(known: dict[int, tuple[float, float]], one: int, other: int) -> float:
    (a, b), (c, d) = known[one], known[other]
    return (d - b) / (c - a)
