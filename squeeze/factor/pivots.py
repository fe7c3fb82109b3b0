"""Rows of a matrix of low rank of which all others are combinations with small coefficients."""

import torch

from squeeze.factor.form import packed_mask
from squeeze.factor.matrices import PIFA

__all__ = ["maxvol", "pivoted"]

_SWAPS = 200
_LARGEST = 1.02  # coefficients that no swap is worth


def maxvol(left: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of a matrix [O, R] whose determinant is nearly the largest: (their numbers int64 [R], the matrix [O, R] in
    terms of them). Pivots of an LU decomposition, then swaps of the worst row (Goreinov et al. 2010)."""
    outputs, rank = left.shape
    _, swaps, _ = torch.linalg.lu_factor_ex(left)
    order = torch.arange(outputs)
    for i, j in enumerate((swaps - 1).tolist()):
        order[[i, j]] = order[[j, i]]
    rows = order[:rank].to(left.device)
    terms, failed = torch.linalg.solve_ex(left[rows].T, left.T)
    if failed:  # of a lower rank: any rows that span it will do
        return rows, (torch.linalg.pinv(left[rows].T) @ left.T).T
    terms = terms.T
    for _ in range(_SWAPS):
        largest = int(terms.abs().argmax())
        i, j = divmod(largest, rank)
        if terms[i, j].abs() <= _LARGEST:
            break
        change = terms[i].clone()
        change[j] -= 1
        terms = terms - torch.outer(terms[:, j] / terms[i, j], change)
        rows[j] = i
    return rows, terms


def pivoted(left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> PIFA:
    """left [O, R] times right [R, I] in the form PIFA. The base is rounded first, and the coefficients fitted to
    what it has become."""
    rows, _ = maxvol(left)
    rows = rows.sort().values
    mask = torch.zeros(len(left), dtype=torch.bool, device=left.device)
    mask[rows] = True
    base = (left[mask] @ right).to(dtype)
    other_rows = left[~mask] @ right
    return PIFA(packed_mask(mask), fitted(other_rows, base.double()).to(dtype), base)


def fitted(rows: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """Coefficients [N, R] with which a base [R, I] comes nearest to rows [N, I]."""
    coefficients: torch.Tensor = torch.linalg.lstsq(base.T, rows.T).solution.T
    return coefficients
