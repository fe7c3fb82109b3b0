"""The contract between a cache's layers and the methods that shrink them: policies, coders, and groups of heads.

A layer tells its policy what happens (`on_prompt`, `on_step`), and never asks which policy it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch

from squeeze.errors import PolicyError, printable
from squeeze.kv.store import Fields

__all__ = [
    "Bits",
    "Coder",
    "FullPrecision",
    "HeadBits",
    "HeadGroup",
    "InBits",
    "LayerTokens",
    "Policy",
    "check_bits",
    "groups_by_bits",
]


class Coder(Protocol):
    """A coder of blocks of keys or values: frozen, pure, and equal to another one with the same parameters."""

    def encode(self, blocks: torch.Tensor, start: int) -> Fields:
        """Code blocks [B, H, n, T, D] of any float dtype as fields [B, H, n, ...]. `start` is the position of the first
        token.
        """

    def decode(self, fields: Fields, start: int, dtype: torch.dtype) -> torch.Tensor:
        """Return the blocks that `encode` coded, [B, H, n, T, D]."""

    def bits(self, block: int, size: int) -> float:
        """Return the bits per value of blocks of `block` tokens and `size` channels, including scales."""


@dataclass(frozen=True)
class HeadGroup:
    """Heads of a layer that are coded alike: all heads if `heads` is None."""

    keys: Coder
    values: Coder
    heads: tuple[int, ...] | None = None


class LayerTokens(Protocol):
    """A layer as its policy sees it, and what the policy may do with the tokens there.

    A layer with a sliding window drops tokens by itself.

    Attributes:
        index: The layer's number.
        sinks: Keys and values [B, H, tokens, D] of the first tokens.
        residual: Keys and values [B, H, tokens, D] of the residual window.
    """

    index: int
    sinks: tuple[torch.Tensor, ...]
    residual: tuple[torch.Tensor, ...]

    @property
    def choosable(self) -> int:
        """The number of tokens in the residual window that are older than the policy's window."""

    def keep(self, tokens: torch.Tensor) -> None:
        """Evict all choosable tokens except those at int64 [B, H, N], ascending."""

    def keep_exact(self, tokens: torch.Tensor) -> None:
        """Keep choosable tokens at int64 [B, H, N], ascending, in the model's dtype, as sinks are."""

    def keep_by_heads(self, tokens: list[torch.Tensor]) -> None:
        """Evict all choosable tokens except those at int64 [B, N] for each head, ascending. N may differ between heads.

        The policy must have `by_heads` set.
        """

    def keep_latest(self, limit: int) -> None:
        """Evict the oldest tokens after the sinks until `limit` remain outside the window, in whole blocks if they are
        coded.
        """


class Policy:
    """A base of frozen dataclasses that choose a coder for each layer and head, and the tokens that stay in the model's
    dtype.

    Attributes:
        sinks: The number of first tokens that stay.
        window: The number of latest tokens that stay (the residual window), at least; at most one block more.
        block: The number of tokens that are coded at a time; 0 codes nothing.
        by_heads: Whether heads of a layer may keep different numbers of tokens.
        adds_sinks: Whether more tokens than the first ones stay in the model's dtype before all others.
        evicts: Whether tokens may be evicted.
        archives: Whether the cache is exact in memory, and only a file of it takes fewer bits.
    """

    by_heads: ClassVar[bool] = False
    adds_sinks: ClassVar[bool] = False
    evicts: ClassVar[bool] = False
    archives: ClassVar[bool] = False

    @property
    def sinks(self) -> int:
        raise NotImplementedError

    @property
    def window(self) -> int:
        raise NotImplementedError

    @property
    def block(self) -> int:
        raise NotImplementedError

    def head_groups(self, layer: int, heads: int) -> list[HeadGroup]:
        """Return the coders of layer number `layer` with `heads` KV heads. Raise PolicyError if it cannot be coded."""
        raise NotImplementedError

    @property
    def observes(self) -> bool:
        """True if the policy needs the queries of a prompt, which must then be read at once."""
        return False

    def wants_queries(self, layer: int, tokens: int) -> bool:
        """Return whether `on_prompt` is to be called for a layer that has `tokens` tokens to choose from."""
        return False

    def on_prompt(self, layer: LayerTokens, query: torch.Tensor) -> None:
        """React to the first prompt, whose queries [B, Hq, Q, D] have attended. Nothing is coded yet."""

    def on_step(self, layer: LayerTokens) -> None:
        """React to new tokens, after full blocks outside the window were coded."""


HeadBits = int | tuple[int, ...]  # bits of a layer, or of each of its KV heads
Bits = int | tuple[HeadBits, ...]  # bits of the model, or of each of its layers


def _of_layer(bits: Bits, layer: int, heads: int) -> tuple[int, ...]:
    """Return the bits of each head. Raise PolicyError if bits are missing for this layer or head."""
    if isinstance(bits, tuple | list):
        if layer >= len(bits):
            raise PolicyError(f"bits are given for {len(bits)} layers, and the model has more")
        by_head: HeadBits = bits[layer]
    else:
        by_head = bits
    if not isinstance(by_head, tuple | list):
        return (by_head,) * heads
    if len(by_head) != heads:
        raise PolicyError(f"bits are given for {len(by_head)} heads of layer {layer}, which has {heads} KV heads")
    return tuple(by_head)


def groups_by_bits(
    key_bits: Bits,
    value_bits: Bits,
    layer: int,
    heads: int,
    keys: Callable[[int], Coder],
    values: Callable[[int], Coder],
) -> list[HeadGroup]:
    """Group the heads of a layer by their bits.

    Args:
        key_bits: Bits of keys, for the model, each layer, or each head of each layer.
        value_bits: Bits of values.
        layer: The number of the layer.
        heads: The number of its KV heads.
        keys: Returns the coder of keys for a number of bits.
        values: Returns the coder of values for a number of bits.

    Raises:
        PolicyError: Bits are missing for the layer or one of its heads.
    """
    pairs = list(zip(_of_layer(key_bits, layer, heads), _of_layer(value_bits, layer, heads), strict=True))
    if len(set(pairs)) == 1:
        return [HeadGroup(keys(pairs[0][0]), values(pairs[0][1]))]
    return [
        HeadGroup(keys(pair[0]), values(pair[1]), tuple(head for head in range(heads) if pairs[head] == pair))
        for pair in dict.fromkeys(pairs)
    ]


def check_bits(bits: Bits, supported: tuple[int, ...]) -> None:
    """Raise PolicyError unless every number of bits is one of `supported`."""
    if isinstance(bits, tuple | list):
        for inner in bits:
            check_bits(inner, supported)
    elif type(bits) is not int or bits not in supported:
        raise PolicyError(f"{printable(bits)} bits are not supported: choose from {', '.join(map(str, supported))}")


@dataclass(frozen=True)
class InBits(Policy):
    """A base of policies that code keys and values by integers.

    Args:
        bits: Bits of keys and, unless `value_bits` is given, of values: one of WIDTHS, for the model, each layer, or
        each head.
        value_bits: Bits of values.
    """

    WIDTHS: ClassVar[tuple[int, ...]] = (1, 2, 3, 4, 8)
    bits: Bits = 4
    value_bits: Bits | None = None

    def __post_init__(self) -> None:
        check_bits(self.bits, self.WIDTHS)
        check_bits(self.bits_of_values, self.WIDTHS)

    @property
    def bits_of_values(self) -> Bits:
        """Bits of values, which are those of keys if only these are given."""
        return self.bits if self.value_bits is None else self.value_bits


@dataclass(frozen=True)
class FullPrecision(Policy):
    """A policy that codes nothing, equal to transformers' DynamicCache: the reference for all others."""

    sinks: int = 0
    window: int = 0
    block: int = 0

    def head_groups(self, layer: int, heads: int) -> list[HeadGroup]:
        return []
