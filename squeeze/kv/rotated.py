"""Rotated: a Hadamard rotation of each token's keys and values, then scalar codes with one scale a token.

The rotation makes channels similar and nearly normal, so that one grid fits all: Lloyd-Max points with norm correction
(TurboQuant: Zandieh et al. 2025; PolarQuant's and QuaRot's rotations) or a uniform grid. Nothing is calibrated.
"""

from dataclasses import dataclass

from squeeze.errors import PolicyError, printable
from squeeze.kv.base import Bits, HeadGroup, Policy, check_bits, groups_by_bits
from squeeze.kv.grouped import GroupedCoder

__all__ = ["Rotated"]

_WIDTHS = (1, 2, 3, 4, 8)


@dataclass(frozen=True)
class Rotated(Policy):
    """A policy of rotation and scalar quantisation.

    Args:
        bits: Bits of keys and, unless `value_bits` is given, of values: 1, 2, 3, 4 or 8, for the model, each layer, or
        each head.
        value_bits: Bits of values.
        points: "normal" for Lloyd-Max points or "even" for a uniform grid, see GroupedCoder.
        sinks: The number of first tokens in full precision.
        window: The number of latest tokens in full precision.
        block: The number of tokens that are coded at a time.
    """

    bits: Bits = 4
    value_bits: Bits | None = None
    points: str = "normal"
    sinks: int = 4
    window: int = 64
    block: int = 32

    def __post_init__(self) -> None:
        check_bits(self.bits, _WIDTHS)
        if self.value_bits is not None:
            check_bits(self.value_bits, _WIDTHS)
        if self.points not in ("normal", "even"):
            raise PolicyError(f"points must be normal or even, got '{printable(self.points)}'")

    def head_groups(self, layer: int, heads: int) -> list[HeadGroup]:
        def coder(width: int) -> GroupedCoder:
            return GroupedCoder(width, "channels", rotate=True, points=self.points)

        value_bits = self.bits if self.value_bits is None else self.value_bits
        return groups_by_bits(self.bits, value_bits, layer, heads, coder, coder)
