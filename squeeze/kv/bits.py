"""Bits for a whole model, for each layer, or for each head of each layer; and heads of the same bits as one part."""

from collections.abc import Callable

from squeeze.errors import PolicyError
from squeeze.kv.base import Coder, Part

__all__ = ["Bits", "HeadBits", "parts_by_bits"]

HeadBits = int | tuple[int, ...]  # of a layer, or of each of its KV heads
Bits = int | tuple[HeadBits, ...]  # of the model, or of each of its layers


def of_layer(bits: Bits, layer: int, heads: int) -> tuple[int, ...]:
    """Bits of each head. Raises PolicyError where there are none for this layer or head."""
    if isinstance(bits, tuple | list):
        if layer >= len(bits):
            raise PolicyError(f"bits are given for {len(bits)} layers, and the model has more")
        here: HeadBits = bits[layer]
    else:
        here = bits
    if not isinstance(here, tuple | list):
        return (here,) * heads
    if len(here) != heads:
        raise PolicyError(f"bits are given for {len(here)} heads of layer {layer}, which has {heads} KV heads")
    return tuple(here)


def parts_by_bits(
    key_bits: Bits,
    value_bits: Bits,
    layer: int,
    heads: int,
    keys: Callable[[int], Coder],
    values: Callable[[int], Coder],
) -> list[Part]:
    """Heads that share both numbers of bits become one part."""
    pairs = list(zip(of_layer(key_bits, layer, heads), of_layer(value_bits, layer, heads), strict=True))
    if len(set(pairs)) == 1:
        return [Part(keys(pairs[0][0]), values(pairs[0][1]))]
    return [
        Part(keys(pair[0]), values(pair[1]), tuple(head for head in range(heads) if pairs[head] == pair))
        for pair in dict.fromkeys(pairs)
    ]


def check(bits: Bits, known: tuple[int, ...]) -> None:
    """Raise PolicyError unless every number of bits is one of `known`."""
    if isinstance(bits, tuple | list):
        for inner in bits:
            check(inner, known)
    elif bits not in known:
        raise PolicyError(f"{bits} bits are not offered here: choose from {', '.join(map(str, known))}")
