"""Integer frequencies of the leaves of a vocabulary, and their cumulative sums.

A walk through the trie needs about twenty of 49,152 cumulative sums. So only the sums before each group of leaves are
stored with the frequencies, and the rest is added up when needed: 200 kB a row in place of 400.
"""

from typing import NamedTuple

import numpy as np

from squeeze.numerics.jit import inline

GROUP = 64  # leaves


class Cdf(NamedTuple):
    """Cumulative frequencies of R rows."""

    sums: np.ndarray  # uint64 [R, groups + 1]: of all leaves before each group, and of all
    parts: np.ndarray | None  # float32 [R, leaves]: cut to an integer and 1 more, a leaf's; None: a group is one leaf


def allocate(rows: int, leaves: int) -> Cdf:
    """Return zeroed frequencies for `rows` rows of `leaves` leaves."""
    return Cdf(np.zeros((rows, -(-leaves // GROUP) + 1), np.uint64), np.zeros((rows, leaves), np.float32))


def cumulative(cdf: Cdf) -> np.ndarray:
    """Return all cumulative sums, uint64 [R, leaves + 1]: of the leaves before each leaf, and of all."""
    if cdf.parts is None:
        return cdf.sums
    frequencies = cdf.parts.astype(np.uint64) + np.uint64(1)
    return np.concatenate([np.zeros((len(frequencies), 1), np.uint64), np.cumsum(frequencies, axis=1)], axis=1)


@inline
def total(cdf, r):
    """Return the sum of all frequencies of a row, uint64."""
    return cdf.sums[r, cdf.sums.shape[1] - 1]


@inline
def before(cdf, r, leaf):
    """Return the sum of the frequencies of a row before this leaf, uint64."""
    return _before(cdf.sums, cdf.parts, r, leaf)


@inline
def _before(sums, parts, r, leaf):
    if parts is None:
        return sums[r, leaf]
    group = leaf // GROUP
    found = np.int64(sums[r, group]) + leaf % GROUP
    for part in parts[r, group * GROUP : leaf]:
        found += np.int64(part)
    return np.uint64(found)


@inline
def frequency(cdf, r, leaf):
    """Return the frequency of a leaf in a row, uint64, at least 1."""
    return _frequency(cdf.sums, cdf.parts, r, leaf)


@inline
def _frequency(sums, parts, r, leaf):
    if parts is None:
        return sums[r, leaf + 1] - sums[r, leaf]
    return np.uint64(np.int64(parts[r, leaf]) + np.int64(1))
