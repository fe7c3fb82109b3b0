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
    """bits: of keys and, unless value_bits says otherwise, of values. group: tokens of a channel, or channels of
    a token, that share a scale and a minimum (bfloat16 each); the block is one group of tokens.
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
