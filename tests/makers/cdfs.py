"""Cumulative frequencies of leaves for tests."""

import numpy as np

from squeeze.numerics.frequencies import GROUP, Cdf


def put(cumulative: np.ndarray, cdf: Cdf, places: np.ndarray) -> None:
    """Write cumulative sums into the rows `places`. A frequency minus 1 must be a float32.

    Args:
        cumulative: uint64 [n, leaves], the sum up to and including each leaf
        cdf: frequencies to write to
        places: row of each of the n
    """
    leaves, groups = cumulative.shape[1], cdf.sums.shape[1] - 1
    cdf.sums[places, 0] = 0
    cdf.sums[places, 1:] = cumulative[:, np.minimum(np.arange(1, groups + 1) * GROUP, leaves) - 1]
    cdf.parts[places] = np.diff(cumulative, prepend=np.uint64(0)) - np.uint64(1)
