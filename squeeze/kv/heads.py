"""Bits of each head for a policy that has a number of bits, so that a budget goes where errors cost most.

What an error of a head's keys or values costs is e^T F e / 2 with the Fisher information F of calibrate.py, taken over
the calibration's sample as the policy's own coder gives it back. Bits are then raised head by head, the steepest fall
of the cost for each bit first (Shoham and Gersho, "Efficient bit allocation for an arbitrary set of quantizers", 1988).
"""

from __future__ import annotations

import dataclasses
import heapq
from typing import TYPE_CHECKING, Any

import torch

from squeeze.errors import PolicyError
from squeeze.kv.calibrate import Statistics
from squeeze.kv.rope import frequencies_of, turn

if TYPE_CHECKING:
    from squeeze.kv.base import Coder, Policy

__all__ = ["bits_by_head", "costs_of"]

_WIDTHS = (2, 3, 4, 8)  # errors of 1 bit are too large for a quadratic to tell what they cost

Place = tuple[int, int, int]  # layer; 0 of keys, 1 of values; KV head


def bits_by_head(model: Any, statistics: dict[int, Statistics], policy: Any, bits: float) -> Policy:
    """`policy` (KIVI or Rotated) with bits for each head, `bits` a value in the mean of the model, scales included.

    Raises PolicyError where that is less than two bits and their scales, or the policy has no bits to choose.
    """
    if not {"bits", "value_bits"} <= {field.name for field in dataclasses.fields(policy)}:
        raise PolicyError(f"{type(policy).__name__} has no bits that heads could differ in")
    frequencies = frequencies_of(model)
    costs: dict[Place, dict[int, tuple[float, float]]] = {}
    for width in _WIDTHS:
        same = dataclasses.replace(policy, bits=width, value_bits=width)
        for layer, found in statistics.items():
            (part,) = same.parts(layer, found.sample[0].shape[1])
            for kind, coder in enumerate((part.keys, part.values)):
                size = coder.bits(policy.block, found.sample[kind].shape[-1])
                heads = costs_of(coder, found, kind, policy.block, policy.sinks, frequencies)
                for head, cost in enumerate(heads.tolist()):
                    costs.setdefault((layer, kind, head), {})[width] = size, cost
    widths = _allocated(costs, bits)
    chosen = [
        tuple(
            tuple(widths[layer, kind, head] for head in range(statistics[layer].sample[0].shape[1]))
            if layer in statistics
            else _WIDTHS[0]
            for layer in range(max(statistics) + 1)
        )
        for kind in (0, 1)
    ]
    made: Policy = dataclasses.replace(policy, bits=chosen[0], value_bits=chosen[1])
    return made


def costs_of(
    coder: Coder, found: Statistics, kind: int, block: int, start: int, frequencies: torch.Tensor | None
) -> torch.Tensor:
    """float64 [H]: what coding a token of each head costs in the mean, in nats; kind 0 is of keys, 1 of values.

    start: tokens that are not coded, the sinks. frequencies: of the rotary embedding that keys have.
    """
    states = found.sample[kind][:, :, start:].float()
    count = states.shape[2] // block
    if not count:
        raise PolicyError(f"the calibration's windows hold no block of {block} tokens")
    blocks = states[:, :, : count * block].unflatten(2, (count, block))
    error = (coder.decode(coder.encode(blocks, start), start, torch.float32) - blocks).flatten(2, 3)
    if kind == 0 and frequencies is not None:  # F is of keys before their rotary embedding
        error = turn(error, frequencies, start, back=True)
    here = error[0].double()
    return ((here @ found.fisher[kind]) * here).sum(-1).mean(-1) / 2


def _allocated(costs: dict[Place, dict[int, tuple[float, float]]], bits: float) -> dict[Place, int]:
    widths = {place: _hull(known) for place, known in costs.items()}
    spent = sum(costs[place][hull[0]][0] for place, hull in widths.items())
    budget = bits * len(costs)
    if spent > budget + 1e-9:
        raise PolicyError(f"this policy takes {spent / len(costs):.3f} bits a value at least, not {bits}")
    at = dict.fromkeys(costs, 0)
    heap: list[tuple[float, Place]] = []

    def offer(place: Place) -> None:
        if at[place] + 1 < len(widths[place]):
            (a, b), (c, d) = (costs[place][widths[place][at[place] + step]] for step in (0, 1))
            heapq.heappush(heap, ((d - b) / (c - a), place))

    for place in costs:
        offer(place)
    while heap:
        _, place = heapq.heappop(heap)
        now, then = (costs[place][widths[place][at[place] + step]][0] for step in (0, 1))
        if spent + then - now > budget + 1e-9:
            continue
        spent += then - now
        at[place] += 1
        offer(place)
    return {place: widths[place][step] for place, step in at.items()}


def _hull(known: dict[int, tuple[float, float]]) -> list[int]:
    """Widths on the lower convex hull of cost over bits, ascending, from the least width on."""
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
