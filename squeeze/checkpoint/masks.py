"""Masks of patterns: the weights of a matrix that stay, and whether a matrix keeps to its pattern. Choosing scores is
left to the methods.
"""

from functools import lru_cache
from itertools import combinations

import torch

from squeeze.checkpoint.pattern import Pattern

__all__ = ["combinations_of", "mask_of", "violations"]


def mask_of(pattern: Pattern, scores: torch.Tensor, by_row: bool = False) -> torch.Tensor:
    """bool [R, C], True where a weight stays: those with the highest scores [R, C]. Of N:M in each group; else
    over all of them, or in each row."""
    rows, columns = scores.shape
    size = pattern.of or pattern.unit
    groups = -(-columns // size)
    fill = -torch.inf if pattern.of else 0.0
    grouped = torch.nn.functional.pad(scores, (0, groups * size - columns), value=fill).reshape(rows, groups, size)
    if pattern.of:
        order = grouped.argsort(stable=True, dim=-1, descending=True)
        keep = torch.zeros(grouped.shape, dtype=torch.bool, device=scores.device)
        keep.scatter_(-1, order[..., : pattern.kept], True)
    else:
        lengths = torch.full((groups,), size, device=scores.device)
        lengths[-1] = columns - (groups - 1) * size
        units = grouped.sum(-1) / lengths
        flat = units if by_row else units.reshape(1, -1)
        order = flat.argsort(stable=True, dim=-1)[:, : round(pattern.removed * flat.shape[1])]
        chosen = torch.ones(flat.shape, dtype=torch.bool, device=scores.device).scatter_(-1, order, False)
        keep = chosen.reshape(rows, groups, 1).expand(grouped.shape)
    return keep.reshape(rows, -1)[:, :columns].contiguous()


def violations(pattern: Pattern, weight: torch.Tensor) -> int:
    """Groups of a matrix [O, I] that hold more than they may. Without N:M, units that are missing from the share
    removed, but for one a row, since shares are rounded."""
    rows, columns = weight.shape
    size = pattern.of or pattern.unit
    groups = -(-columns // size)
    present = torch.nn.functional.pad(weight != 0, (0, groups * size - columns)).reshape(rows, groups, size)
    if pattern.of:
        return int((present.sum(-1) > pattern.kept).sum())
    empty = int((~present.any(-1)).sum())
    return max(0, int(pattern.removed * rows * groups) - empty - rows)


@lru_cache
def combinations_of(kept: int, of: int) -> torch.Tensor:
    """bool [C, M]: every way to keep N of M, in lexicographic order of the places kept. Of 2:4 there are 6."""
    chosen = list(combinations(range(of), kept))
    masks = torch.zeros((len(chosen), of), dtype=torch.bool)
    for row, places in zip(masks, chosen, strict=True):
        row[list(places)] = True
    return masks
