"""Attention over int8 keys and values in rings, one for each lane: how far heads are turned, what goes to the rings,
and what queries find there. reference.py defines it.

A query sees the first BLOCK positions of its lane always, and the latest ones in blocks: its own, and as many before it
as fill the window.
"""

from typing import NamedTuple

from torch import Tensor

__all__ = ["BLOCK", "Kept", "Norms", "Queries", "Shape", "Turns"]

BLOCK = 16  # positions


class Shape(NamedTuple):
    """Heads of queries, heads of keys and values, numbers of a head, and the window's blocks."""

    heads: int
    groups: int
    size: int
    window: int

    @property
    def far(self) -> int:
        """The position as which, at most, a query meets the first block."""
        return BLOCK * self.window + BLOCK - 1


class Norms(NamedTuple):
    """The weights of norms of queries and keys in a layer, float32 [size], or None."""

    query: Tensor | None
    key: Tensor | None
    epsilon: float


class Turns(NamedTuple):
    """Of rows, float32 [2, R, size / 2]: of keys and of queries as they meet the window, and the first block."""

    cosine: Tensor
    sine: Tensor


class Kept(NamedTuple):
    """Keys (0) and values (1) of a layer, quantised when they are written and never touched again.

    A slot is a position of the first block, or one of the ring behind it.
    """

    integers: Tensor  # int8 [2, lanes, groups, slots, size]
    scales: Tensor  # float32 [2, lanes, groups, slots]


class Queries(NamedTuple):
    """As they meet the first block (0), and the window (1)."""

    integers: Tensor  # int16 [R, 2, heads, size]
    scales: Tensor  # float32 [R, 2, heads]
