"""How the weights of a matrix lie before and after it was compressed, in few numbers."""

from typing import Any

import torch

__all__ = ["BINS", "histogram"]

BINS = 48
_WIDTH = 4.0  # standard deviations to each side
_PIECE = 1 << 20  # weights counted at a time: float32 holds their number


def histogram(before: torch.Tensor, after: torch.Tensor) -> dict[str, Any]:
    """Counts of weights [O, I] in BINS bins of one width, from -bound to bound: {"bound": 4 standard deviations of
    `before`, "before": [BINS], "after": [BINS], "zeros": [before, after]}. What lies beyond is in the outermost bins;
    weights that are 0 are in none, and counted apart.
    """
    spread = float(before.float().std(correction=0))
    bound = _WIDTH * spread or float(before.abs().max()) or 1.0
    (first, zeros), (second, more) = _counts(before, bound), _counts(after, bound)
    return {"bound": float(f"{bound:.6g}"), "before": first, "after": second, "zeros": [zeros, more]}


def _counts(values: torch.Tensor, bound: float) -> tuple[list[int], int]:
    counts, zeros = torch.zeros(BINS, dtype=torch.int64, device=values.device), 0
    for piece in values.reshape(-1).split(_PIECE):
        counts += torch.histc(piece.float().clamp(-bound, bound), BINS, -bound, bound).to(torch.int64)
        zeros += len(piece) - int(piece.count_nonzero())
    counts[BINS // 2] -= zeros  # which begins at 0
    return counts.tolist(), zeros
