"""Confidence intervals of what is measured token by token on a text."""

import math
from collections.abc import Sequence
from statistics import NormalDist

__all__ = ["LEAST", "interval"]

LEAST = 8  # blocks
_Z = NormalDist().inv_cdf(0.975)


def interval(sums: Sequence[float], counts: Sequence[int]) -> tuple[float, float] | None:
    """Of sum(sums) / sum(counts), a mean over tokens, with 95 % confidence; None of fewer than LEAST blocks.

    Each sum is that of a block of consecutive tokens, and each count how many they are. Tokens of one block may depend
    on each other, blocks are taken as independent: clustered standard errors (Miller 2024, arXiv 2411.00640), times
    Student's t.
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
    """The 97.5 % point of Student's t, to 0.1 % from 7 degrees of freedom on (Abramowitz and Stegun 26.7.5)."""
    z, n = _Z, freedom
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )
