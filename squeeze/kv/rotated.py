"""Rotated: each token's keys and values times a Hadamard matrix, then scalar codes with one scale a token.

The rotation makes channels alike and nearly normal, so that one grid fits all: Lloyd-Max points with norm correction
(TurboQuant: Zandieh et al. 2025; PolarQuant's and QuaRot's rotations) or an even grid. Nothing is calibrated.
"""

from dataclasses import dataclass

from squeeze.errors import PolicyError, printable
from squeeze.kv.base import Bits, HeadGroup, Policy, check_bits, groups_by_bits
from squeeze.kv.grouped import GroupedCoder

__all__ = ["Rotated"]

_WIDTHS = (1, 2, 3, 4, 8)


@dataclass(frozen=True)
class Rotated(Policy):
    """bits: of keys and, unless value_bits says otherwise, of values. points: "normal" or "even", see GroupedCoder."""

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
            raise PolicyError(f"points are normal or even, not '{printable(self.points)}'")

    def head_groups(self, layer: int, heads: int) -> list[HeadGroup]:
        def coder(width: int) -> GroupedCoder:
            return GroupedCoder(width, "channels", rotate=True, points=self.points)

        value_bits = self.bits if self.value_bits is None else self.value_bits
        return groups_by_bits(self.bits, value_bits, layer, heads, coder, coder)
