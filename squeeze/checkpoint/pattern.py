"""Patterns of sparsity: which weights of a matrix [O, I] may stay. Choosing scores is left to the methods."""

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Self

import torch

from squeeze.errors import SqueezeError, printable

__all__ = ["Pattern", "combinations_of"]

_LONGEST = 40  # characters that a pattern has
_SYNTAX = re.compile(r"(\d+):(\d+)|(?:(\d+)x)?(\d+(?:\.\d+)?)%")
_LARGEST = 32  # of the groups of N:M


@dataclass(frozen=True)
class Pattern:
    """N:M: of every `of` consecutive inputs of a row at most `kept` stay; the last group may be shorter. With `of` 0 a
    share `removed` goes, weight by weight, or in whole units of `unit` consecutive inputs of a row (GQSA, Zeng et al.
    2024, arXiv 2412.17560).
    """

    kept: int = 2
    of: int = 4
    removed: float = 0.0
    unit: int = 1

    def __post_init__(self) -> None:
        if self.of and not 0 < self.kept <= self.of <= _LARGEST:
            raise SqueezeError(f"pattern {self.kept}:{self.of}: N:M keeps N of M, at least 1 and at most M, M <= 32")
        if not self.of and not (0 <= self.removed < 1 and self.unit >= 1):
            raise SqueezeError(f"pattern {self}: the share removed is from 0 % to less than 100 %")

    @classmethod
    def parse(cls, text: str) -> Self:
        """ "2:4" keeps 2 of every 4; "50%" removes half of the weights, "16x50%" half of the units of 16."""
        match = _SYNTAX.fullmatch(text.strip()) if len(text) <= _LONGEST else None
        if not match:
            raise SqueezeError(
                f"pattern '{printable(text)}': name N:M such as 2:4, a share removed such as 50%, or units as 16x50%"
            )
        kept, of, unit, share = match.groups()
        if of is not None:
            if not int(of):
                raise SqueezeError(f"pattern '{printable(text)}': there are no groups of 0")
            return cls(int(kept), int(of))
        return cls(0, 0, float(share) / 100, int(unit or 1))

    def __str__(self) -> str:
        if self.of:
            return f"{self.kept}:{self.of}"
        return f"{self.unit}x{100 * self.removed:g}%" if self.unit > 1 else f"{100 * self.removed:g}%"

    def mask(self, scores: torch.Tensor, by_row: bool = False) -> torch.Tensor:
        """bool [R, C], True where a weight stays: those with the highest scores [R, C]. Of N:M in each group; else
        over all of them, or in each row."""
        rows, columns = scores.shape
        size = self.of or self.unit
        groups = -(-columns // size)
        fill = -torch.inf if self.of else 0.0
        grouped = torch.nn.functional.pad(scores, (0, groups * size - columns), value=fill).reshape(rows, groups, size)
        if self.of:
            order = grouped.argsort(stable=True, dim=-1, descending=True)
            keep = torch.zeros(grouped.shape, dtype=torch.bool, device=scores.device)
            keep.scatter_(-1, order[..., : self.kept], True)
        else:
            lengths = torch.full((groups,), size, device=scores.device)
            lengths[-1] = columns - (groups - 1) * size
            units = grouped.sum(-1) / lengths
            flat = units if by_row else units.reshape(1, -1)
            order = flat.argsort(stable=True, dim=-1)[:, : round(self.removed * flat.shape[1])]
            chosen = torch.ones(flat.shape, dtype=torch.bool, device=scores.device).scatter_(-1, order, False)
            keep = chosen.reshape(rows, groups, 1).expand(grouped.shape)
        return keep.reshape(rows, -1)[:, :columns].contiguous()

    def step(self, block: int) -> int:
        """Columns whose mask is chosen at once where weights change from column to column."""
        return self.of or -(-block // self.unit) * self.unit

    def violations(self, weight: torch.Tensor) -> int:
        """Groups of a matrix [O, I] that hold more than they may. Without N:M, units that are missing from the share
        removed, but for one a row, since shares are rounded."""
        rows, columns = weight.shape
        size = self.of or self.unit
        groups = -(-columns // size)
        present = torch.nn.functional.pad(weight != 0, (0, groups * size - columns)).reshape(rows, groups, size)
        if self.of:
            return int((present.sum(-1) > self.kept).sum())
        empty = int((~present.any(-1)).sum())
        return max(0, int(self.removed * rows * groups) - empty - rows)


@lru_cache
def combinations_of(kept: int, of: int) -> torch.Tensor:
    """bool [C, M]: every way to keep N of M, in lexicographic order of the places kept. Of 2:4 there are 6."""
    chosen = list(combinations(range(of), kept))
    masks = torch.zeros((len(chosen), of), dtype=torch.bool)
    for row, places in zip(masks, chosen, strict=True):
        row[list(places)] = True
    return masks
