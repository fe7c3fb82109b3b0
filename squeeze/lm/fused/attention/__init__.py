"""Attention over int8 keys and values in a ring buffer per lane: rotary embedding, writing to the ring, and attention.

A query always sees the first BLOCK positions of its lane. It sees the latest positions in blocks: its own block, and
those before it that fill the window. reference.py is the definition.
"""

from typing import NamedTuple

from torch import Tensor

__all__ = ["BLOCK", "LayerCache", "Norms", "Queries", "Rotary", "Shape"]

BLOCK = 16  # positions


class Shape(NamedTuple):
    """The heads of queries, the heads of keys and values, the numbers of a head, and the window in blocks."""

    heads: int
    groups: int
    size: int
    window: int

    @property
    def far(self) -> int:
        """The largest position that a query has relative to the first block."""
        return BLOCK * self.window + BLOCK - 1


class Norms(NamedTuple):
    """The weights of norms of queries and keys in a layer, float32 [size] or None."""

    query: Tensor | None
    key: Tensor | None
    epsilon: float


class Rotary(NamedTuple):
    """Cosines and sines of rows, float32 [2, R, size / 2]: for the window (keys and queries), and for the first block
    (queries)."""

    cosine: Tensor
    sine: Tensor


class LayerCache(NamedTuple):
    """Keys (0) and values (1) of a layer, quantised when they are written, and never changed.

    A slot is a position of the first block, or one of the ring after it.
    """

    integers: Tensor  # int8 [2, lanes, groups, slots, size]
    scales: Tensor  # float32 [2, lanes, groups, slots]


class Queries(NamedTuple):
    """Quantised queries for the first block (0) and for the window (1)."""

    integers: Tensor  # int16 [R, 2, heads, size]
    scales: Tensor  # float32 [R, 2, heads]
