"""Bits for a whole model, for each layer, or for each head of each layer; and heads of the same bits as one group."""

from collections.abc import Callable

from squeeze.errors import PolicyError, printable
from squeeze.kv.base import Coder, HeadGroup

__all__ = ["Bits", "HeadBits", "check_bits", "groups_by_bits"]

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
