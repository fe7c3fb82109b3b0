"""KIVI: keys quantised per channel over groups of tokens, values per token (Liu et al., ICML 2024).

Keys have a few channels that are large in every token, so that a scale for each channel costs least; values have
no such channels. Unlike KIVI's own code, which rebuilds groups as it goes, a block here is coded once.
"""

from dataclasses import dataclass

from squeeze.kv.base import HeadGroup, InBits, groups_by_bits
from squeeze.kv.grouped import GroupedCoder

__all__ = ["KIVI"]


@dataclass(frozen=True)
class KIVI(InBits):
    """A policy with keys quantised per channel and values per token on a uniform grid.

    Args:
        group: The number of tokens of a channel, or channels of a token, that share a bfloat16 scale and minimum. It is
        also the number of tokens that are coded at a time.
        sinks: The number of first tokens in full precision.
        window: The number of latest tokens in full precision.
    """

    group: int = 64
    sinks: int = 4
    window: int = 64

    @property
    def block(self) -> int:
        return self.group

    def head_groups(self, layer: int, heads: int) -> list[HeadGroup]:
        def keys(width: int) -> GroupedCoder:
            return GroupedCoder(width, "tokens")

        def values(width: int) -> GroupedCoder:
            return GroupedCoder(width, "channels", self.group)

        return groups_by_bits(self.bits, self.bits_of_values, layer, heads, keys, values)
