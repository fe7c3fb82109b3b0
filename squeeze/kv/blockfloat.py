"""Block floating point: channels of a token share an exponent, in an order that groups channels of similar size.

The exponent of a block is that of its largest value, so blocks of similar channels lose least. The order is found
offline by calibration (Drumond et al. 2018 for the format; KVmix and Ecco for reordering channels of KV caches).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd
from typing import Any

import torch

from squeeze.errors import PolicyError
from squeeze.kv.base import HeadGroup, Policy, check_bits
from squeeze.kv.codes import pack, unpack
from squeeze.kv.rotary import frequencies_of
from squeeze.kv.statistics import KVStatistics, costs_of
from squeeze.kv.store import Fields

__all__ = ["BlockFloat", "BlockFloatCoder", "channel_orders", "ordered"]

Orders = tuple[tuple[tuple[tuple[int, ...], tuple[int, ...]], ...], ...]  # [layer][head], of keys and of values
_BIAS = 128  # code of the exponent 0


@dataclass(frozen=True)
class BlockFloatCoder:
    """A coder with signed mantissas of `width` bits and an 8-bit exponent for each `share` channels. `order` permutes
    channels.
    """

    width: int
    share: int = 16
    order: tuple[int, ...] | None = None

    def bits(self, block: int, size: int) -> float:
        return self.width + 8 / gcd(self.share, size)

    def encode(self, blocks: torch.Tensor, start: int) -> Fields:
        values = blocks.to(torch.float32)
        if self.order is not None:
            values = values[..., list(self.order)]
        values = values.unflatten(-1, (-1, gcd(self.share, values.shape[-1])))
        most = (1 << (self.width - 1)) - 1
        size = values.abs().amax(-1, keepdim=True).clamp(min=2.0**-100)
        exponent = (size / (most + 0.5)).log2().ceil().clamp(-_BIAS, 255 - _BIAS)
        codes = (values / exponent.exp2()).round().clamp(-most, most) + most
        packed = pack(codes.to(torch.uint8).flatten(-2), self.width)
        return {"codes": packed, "exponent": (exponent + _BIAS).to(torch.uint8)[..., 0]}

    def decode(self, fields: Fields, start: int, dtype: torch.dtype) -> torch.Tensor:
        exponent = fields["exponent"].to(torch.float32) - _BIAS
        count = fields["codes"].shape[-1] * 8 // self.width
        codes = unpack(fields["codes"], self.width, count).to(torch.float32)
        values: torch.Tensor = (codes - ((1 << (self.width - 1)) - 1)).unflatten(-1, (exponent.shape[-1], -1))
        values = (values * exponent.exp2()[..., None]).flatten(-2)
        if self.order is not None:
            values = values[..., _places(self.order, values.device)]
        return values.to(dtype)


@lru_cache(maxsize=4096)  # each entry is a copy on the device
@torch.inference_mode(False)
def _places(order: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Return the position of each channel in an order, int64 [D]."""
    return torch.tensor(order, device=device).argsort()


@dataclass(frozen=True)
class BlockFloat(Policy):
    """A policy of block floating point.

    Args:
        bits: Bits of a mantissa with its sign: 2, 3, 4 or 8.
        share: The number of channels that share an exponent.
        orders: The order of channels of each head, from `channel_orders`, or None for the model's own order.
        sinks: The number of first tokens in full precision.
        window: The number of latest tokens in full precision.
        block: The number of tokens that are coded at a time.
    """

    bits: int = 4
    share: int = 16
    orders: Orders | None = None
    sinks: int = 4
    window: int = 64
    block: int = 32

    def __post_init__(self) -> None:
        check_bits(self.bits, (2, 3, 4, 8))
        orders = (order for layer in self.orders or () for pair in layer for order in pair)
        if any(sorted(order) != list(range(len(order))) for order in orders):
            raise PolicyError("an order must list each channel once")

    def head_groups(self, layer: int, heads: int) -> list[HeadGroup]:
        if self.orders is None:
            coder = BlockFloatCoder(self.bits, self.share)
            return [HeadGroup(coder, coder)]
        if layer >= len(self.orders) or len(self.orders[layer]) != heads:
            raise PolicyError(f"expected orders for layer {layer} with {heads} KV heads")
        coders = [[BlockFloatCoder(self.bits, self.share, order) for order in pair] for pair in self.orders[layer]]
        return [HeadGroup(keys, values, (head,)) for head, (keys, values) in enumerate(coders)]


def channel_orders(model: Any, statistics: dict[int, KVStatistics], policy: BlockFloat) -> Orders:
    """Return the best of three channel orders for each head: the model's own, by size, and by Fisher information.

    Large channels together waste no exponent, but share a coarse one, and are often those that matter most.
    """
    frequencies = frequencies_of(model)

    def best(states: KVStatistics, kind: int) -> list[tuple[int, ...]]:
        size = states.sample[kind].double().square().mean((0, 2))  # [H, D]
        stake = size * states.fisher[kind].diagonal(dim1=-2, dim2=-1)
        same = torch.arange(size.shape[1]).expand_as(size)
        tried = torch.stack([same, size.argsort(-1, descending=True), stake.argsort(-1, descending=True)])
        costs = torch.stack([
            torch.stack([cost(states, kind, tuple(order.tolist()))[head] for head, order in enumerate(orders)])
            for orders in tried
        ])  # fmt: skip  # [orders, H]
        return [tuple(tried[row, head].tolist()) for head, row in enumerate(costs.argmin(0).tolist())]

    def cost(states: KVStatistics, kind: int, order: tuple[int, ...]) -> torch.Tensor:
        coder = BlockFloatCoder(policy.bits, policy.share, order)
        return costs_of(coder, states, kind, policy.block, policy.sinks, frequencies)

    layers = (statistics.get(layer) for layer in range(max(statistics) + 1))
    return tuple(tuple(zip(best(x, 0), best(x, 1), strict=True)) if x else () for x in layers)


def ordered(model: Any, statistics: dict[int, KVStatistics], policy: BlockFloat, reorder: int) -> BlockFloat:
    """Return the policy with the orders of `channel_orders`, or unchanged if `reorder` is 0."""
    return replace(policy, orders=channel_orders(model, statistics, policy)) if reorder else policy
