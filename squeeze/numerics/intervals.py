"""Confidence intervals for means over the tokens of a text."""

import math
from collections.abc import Sequence
from statistics import NormalDist

__all__ = ["LEAST", "interval"]

LEAST = 8  # blocks
_Z = NormalDist().inv_cdf(0.975)


def interval(sums: Sequence[float], counts: Sequence[int]) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of sum(sums) / sum(counts), or None for fewer than LEAST blocks.

    Tokens of one block may depend on each other; blocks are taken as independent. This is the clustered standard error
    (Miller 2024, arXiv:2411.00640) times Student's t.

    Args:
        sums: The sum over each block of consecutive tokens.
        counts: The number of tokens of each block.
    """
    blocks = len(sums)
    if blocks < LEAST:
        return None
    total = sum(counts)
    mean = sum(sums) / total
    squares = sum((one - mean * count) ** 2 for one, count in zip(sums, counts, strict=True))
    error = _student(blocks - 1) * math.sqrt(blocks / (blocks - 1) * squares) / total
    return mean - error, mean + error


def _student(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t, to 0.1 % from 7 degrees of freedom on (Abramowitz and Stegun
    26.7.5).
    """
    z, n = _Z, freedom
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )
