"""The contract between a cache's layers and the methods that shrink them: policies, coders, and groups of heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch

from squeeze.errors import PolicyError, printable
from squeeze.kv.store import Fields

__all__ = ["Bits", "Coder", "FullPrecision", "HeadBits", "HeadGroup", "Held", "Policy", "check_bits", "groups_by_bits"]


class Coder(Protocol):
    """Codes blocks of keys or of values. Frozen, pure, and equal to another one of the same parameters."""

    def encode(self, blocks: torch.Tensor, start: int) -> Fields:
        """[B, H, n, T, D] in any float dtype to fields [B, H, n, ...]; the first token stands at position `start`."""

    def decode(self, fields: Fields, start: int, dtype: torch.dtype) -> torch.Tensor:
        """What `encode` kept, [B, H, n, T, D]."""

    def bits(self, block: int, size: int) -> float:
        """Bits a value of blocks of `block` tokens and `size` channels, scales and all else included."""


@dataclass(frozen=True)
class HeadGroup:
    """Heads of a layer that are coded alike; all of them where `heads` is None."""

    keys: Coder
    values: Coder
    heads: tuple[int, ...] | None = None


class Held(Protocol):
    """What a policy is shown of a layer, and what it may do with the tokens there.

    index: the layer's number. sinks, residual: keys and values [B, H, tokens, D]. A layer with a sliding window gives
    up tokens on its own.
    """

    index: int
    sinks: tuple[torch.Tensor, ...]
    residual: tuple[torch.Tensor, ...]

    @property
    def choosable(self) -> int:
        """Tokens of the residual window that are older than the policy's window."""

    def keep(self, tokens: torch.Tensor) -> None:
        """Give up all choosable tokens but those at int64 [B, H, N], ascending."""

    def keep_exact(self, tokens: torch.Tensor) -> None:
        """Let choosable tokens at int64 [B, H, N], ascending, stay in the model's dtype, as sinks do."""

    def keep_by_heads(self, tokens: list[torch.Tensor]) -> None:
        """Give up all choosable tokens but those at int64 [B, N] of each head, ascending, whose numbers N may differ.
        The policy says so before (`by_heads`)."""

    def keep_latest(self, limit: int) -> None:
        """Give up the oldest tokens after the sinks, so that `limit` stay, the window aside; whole blocks of coded
        ones."""


class Policy:
    """A frozen dataclass below this: which coder for which layer and head, and what stays in the model's dtype.

    sinks: first tokens that stay. window: latest tokens that stay, the residual window, at least; a block more at
    most. block: tokens coded at a time; 0 codes nothing. by_heads: whether heads of a layer may keep different numbers
    of tokens. adds_sinks: whether more tokens than the first stay in the model's dtype before all others. evicts:
    whether tokens may be given up.
    """

    by_heads: ClassVar[bool] = False
    adds_sinks: ClassVar[bool] = False
    evicts: ClassVar[bool] = False

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
        """How layer number `layer` of `heads` KV heads is coded. Raises PolicyError where it cannot be."""
        raise NotImplementedError

    @property
    def observes(self) -> bool:
        """Whether the policy looks at queries of a prompt, which has to be read at once."""
        return False

    def wants_queries(self, layer: int, tokens: int) -> bool:
        """Whether `on_prompt` is to be called for a layer, which has `tokens` tokens to choose from."""
        return False

    def on_prompt(self, held: Held, query: torch.Tensor) -> None:
        """The first prompt was read, and its queries [B, Hq, Q, D] have attended; nothing is coded yet."""

    def on_step(self, held: Held) -> None:
        """Tokens were added, and full blocks outside the window are coded."""


HeadBits = int | tuple[int, ...]  # of a layer, or of each of its KV heads
Bits = int | tuple[HeadBits, ...]  # of the model, or of each of its layers


def _of_layer(bits: Bits, layer: int, heads: int) -> tuple[int, ...]:
    """Bits of each head. Raises PolicyError where there are none for this layer or head."""
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
    """Heads that share both numbers of bits become one group."""
    pairs = list(zip(_of_layer(key_bits, layer, heads), _of_layer(value_bits, layer, heads), strict=True))
    if len(set(pairs)) == 1:
        return [HeadGroup(keys(pairs[0][0]), values(pairs[0][1]))]
    return [
        HeadGroup(keys(pair[0]), values(pair[1]), tuple(head for head in range(heads) if pairs[head] == pair))
        for pair in dict.fromkeys(pairs)
    ]


def check_bits(bits: Bits, known: tuple[int, ...]) -> None:
    """Raise PolicyError unless every number of bits is one of `known`."""
    if isinstance(bits, tuple | list):
        for inner in bits:
            check_bits(inner, known)
    elif type(bits) is not int or bits not in known:
        raise PolicyError(f"{printable(bits)} bits are not offered here: choose from {', '.join(map(str, known))}")


@dataclass(frozen=True)
class FullPrecision(Policy):
    """Every token stays in the model's dtype."""

    sinks: int = 0
    window: int = 0
    block: int = 0

    def head_groups(self, layer: int, heads: int) -> list[HeadGroup]:
        return []
