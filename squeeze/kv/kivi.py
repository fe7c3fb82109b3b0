"""KIVI: keys quantised per channel over groups of tokens, values per token (Liu et al., ICML 2024).

Keys have a few channels that are large in every token, so that a scale for each channel costs least; values have
no such channels. Unlike KIVI's own code, which rebuilds groups as it goes, a block here is coded once.
"""

from dataclasses import dataclass

from squeeze.kv.base import Bits, HeadGroup, Policy, check_bits, groups_by_bits
from squeeze.kv.grouped import GroupedCoder

__all__ = ["KIVI"]

WIDTHS = (1, 2, 3, 4, 8)


@dataclass(frozen=True)
class KIVI(Policy):
    """A policy with keys quantised per channel and values per token on a uniform grid.

    Args:
        bits: Bits of keys and, unless `value_bits` is given, of values: 1, 2, 3, 4 or 8, for the model, each layer, or
        each head.
        value_bits: Bits of values.
        group: The number of tokens of a channel, or channels of a token, that share a bfloat16 scale and minimum. It is
        also the number of tokens that are coded at a time.
        sinks: The number of first tokens in full precision.
        window: The number of latest tokens in full precision.
    """

    bits: Bits = 4
    value_bits: Bits | None = None
    group: int = 64
    sinks: int = 4
    window: int = 64

    def __post_init__(self) -> None:
        check_bits(self.bits, WIDTHS)
        if self.value_bits is not None:
            check_bits(self.value_bits, WIDTHS)

    @property
    def block(self) -> int:
        return self.group

    def head_groups(self, layer: int, heads: int) -> list[HeadGroup]:
        value_bits = self.bits if self.value_bits is None else self.value_bits

        def keys(width: int) -> GroupedCoder:
            return GroupedCoder(width, "tokens")

        def values(width: int) -> GroupedCoder:
            return GroupedCoder(width, "channels", self.group)

        return groups_by_bits(self.bits, value_bits, layer, heads, keys, values)
