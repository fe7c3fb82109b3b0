"""Frequencies of leaves from their sums."""

import numpy as np

from squeeze.numerics.frequencies import GROUP, Cdf


def put(cumulative: np.ndarray, cdf: Cdf, places: np.ndarray) -> None:
    """Enter sums with each leaf, uint64 [n, leaves], in the rows `places`. A frequency less 1 has to be a float32."""
    leaves, groups = cumulative.shape[1], cdf.sums.shape[1] - 1
    cdf.sums[places, 0] = 0
    cdf.sums[places, 1:] = cumulative[:, np.minimum(np.arange(1, groups + 1) * GROUP, leaves) - 1]
    cdf.parts[places] = np.diff(cumulative, prepend=np.uint64(0)) - np.uint64(1)
