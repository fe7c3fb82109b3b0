"""Rotated: a Hadamard rotation of each token's keys and values, then scalar codes with one scale a token.

The rotation makes channels similar and nearly normal, so that one grid fits all: Lloyd-Max points with norm correction
(TurboQuant: Zandieh et al. 2025; PolarQuant's and QuaRot's rotations) or a uniform grid. Nothing is calibrated.
"""

from dataclasses import dataclass

from squeeze.errors import PolicyError, printable
from squeeze.kv.base import HeadGroup, InBits, groups_by_bits
from squeeze.kv.grouped import GroupedCoder

__all__ = ["Rotated"]


@dataclass(frozen=True)
class Rotated(InBits):
    """A policy of rotation and scalar quantisation.

    Args:
        points: "normal" for Lloyd-Max points or "even" for a uniform grid, see GroupedCoder.
        sinks: The number of first tokens in full precision.
        window: The number of latest tokens in full precision.
        block: The number of tokens that are coded at a time.
    """

    points: str = "normal"
    sinks: int = 4
    window: int = 64
    block: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.points not in ("normal", "even"):
            raise PolicyError(f"points must be normal or even, got '{printable(self.points)}'")

    def head_groups(self, layer: int, heads: int) -> list[HeadGroup]:
        def coder(width: int) -> GroupedCoder:
            return GroupedCoder(width, "channels", rotate=True, points=self.points)

        return groups_by_bits(self.bits, self.bits_of_values, layer, heads, coder, coder)
