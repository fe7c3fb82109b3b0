"""Patterns of sparsity: which weights of a matrix [O, I] may stay. `--help` reads this module, so it does not import
torch."""

import re
from dataclasses import dataclass
from typing import Self

from squeeze.errors import SqueezeError, printable

__all__ = ["Pattern"]

_LONGEST = 40  # most characters of a pattern
_SYNTAX = re.compile(r"(\d+):(\d+)|(?:(\d+)x)?(\d+(?:\.\d+)?)%")
_LARGEST = 32  # largest M of N:M


@dataclass(frozen=True)
class Pattern:
    """A pattern of sparsity.

    N:M keeps at most `n` of every `m` consecutive inputs of a row; the last group may be shorter. With `m` 0 a
    share `removed` is removed: single weights, or units of `unit` consecutive inputs of a row (GQSA, Zeng et al. 2024,
    arXiv 2412.17560).
    """

    n: int = 2
    m: int = 4
    removed: float = 0.0
    unit: int = 1

    def __post_init__(self) -> None:
        if self.m and not 0 < self.n <= self.m <= _LARGEST:
            raise SqueezeError(f"pattern {self.n}:{self.m}: N:M keeps N of M, at least 1 and at most M, M <= 32")
        if not self.m and not (0 <= self.removed < 1 and self.unit >= 1):
            raise SqueezeError(f"pattern {self}: the share removed must be from 0 % to less than 100 %")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a pattern: "2:4" keeps 2 of every 4, "50%" removes half of the weights, "16x50%" half of the units
        of 16."""
        match = _SYNTAX.fullmatch(text.strip()) if len(text) <= _LONGEST else None
        if not match:
            raise SqueezeError(
                f"pattern '{printable(text)}': name N:M such as 2:4, a share removed such as 50%, or units as 16x50%"
            )
        n, m, unit, share = match.groups()
        if m is not None:
            if not int(m):
                raise SqueezeError(f"pattern '{printable(text)}': there are no groups of 0")
            return cls(int(n), int(m))
        return cls(0, 0, float(share) / 100, int(unit or 1))

    def __str__(self) -> str:
        if self.m:
            return f"{self.n}:{self.m}"
        return f"{self.unit}x{100 * self.removed:g}%" if self.unit > 1 else f"{100 * self.removed:g}%"

    def step(self, block: int) -> int:
        """Return the columns whose mask is chosen at once if weights change from column to column."""
        return self.m or -(-block // self.unit) * self.unit
