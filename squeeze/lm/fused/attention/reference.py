"""The definition of attention, in plain torch.

A query is multiplied with every slot of its lane's ring, and slots that it does not see have weight 0. Sums are of
integers, so neither these slots nor their order change a bit. Rows are positions int64 [lanes, n], one lane after the
other.
"""

from functools import cache

import numpy as np
import torch
from torch import Tensor

from squeeze.lm.fused.attention import BLOCK, LayerCache, Norms, Queries, Rotary, Shape
from squeeze.lm.fused.reference import Product
from squeeze.numerics.int8 import TOP, TOP_16
from squeeze.numerics.tensors import angles, exp_negative, quantise, quotient, rms_inverse, split_product

__all__ = ["SCORES", "attend", "heads", "root_of", "rotary"]

_MASKED = -1e30
_UNIT = float(1 << 20)
SCORES = 1 << 24  # scores at once, unless one position of all lanes has more


def root_of(size: int) -> float:
    """Return the float32 nearest to 1 / sqrt(size)."""
    return float(np.float32(1.0) / np.sqrt(np.float32(size)))


def rotary(table: Tensor, factor: float, positions: Tensor, shape: Shape, most: int) -> Rotary:
    """Return cosines and sines of positions.

    Args:
        table: of `angles`.
        factor: of cosines and sines (YaRN).
        positions: int64 [lanes, n].
        shape: of the heads.
        most: at least the largest position.
    """
    met = torch.stack([positions, positions.clamp(max=shape.far)]).flatten(1)
    return Rotary(*angles(table, factor, met, most))


def heads(product: Product, shape: Shape, norms: Norms, rotary: Rotary, positions: Tensor, kv: LayerCache) -> Queries:
    """Return quantised queries of a product, and write its keys and values to their slots.

    Args:
        product: [R, (heads + 2 groups) * size].
        shape: of the heads.
        norms: of queries and keys.
        rotary: angles of the rows.
        positions: int64 [lanes, n].
        kv: the cache of the layer.
    """
    count, groups = shape.heads, shape.groups
    parts = product.biased().view(positions.numel(), -1, shape.size).split((count, groups, groups), 1)
    queries, keys = _normed(parts[0], norms.query, norms), _normed(parts[1], norms.key, norms)
    near, far = _rotated(torch.cat([queries, keys], 1), rotary)
    tops = _tops(2 * count, 2 * groups, near.device)
    integers, scales = quantise(torch.cat([far[:, :count], near, parts[2]], 1), tops)
    lanes, ring = torch.arange(positions.shape[0], device=near.device)[:, None], kv.scales.shape[-1] - BLOCK
    slots = torch.where(positions < BLOCK, positions, BLOCK + (positions - BLOCK) % ring)
    for stored, new in zip(kv, (integers.to(torch.int8), scales), strict=True):
        written = new[:, 2 * count :].unflatten(1, (2, groups)).unflatten(0, positions.shape)
        stored.movedim((1, 3), (0, 1))[lanes, slots] = written
    split = integers[:, : 2 * count].to(torch.int16).unflatten(1, (2, count))
    return Queries(split, scales[:, : 2 * count].unflatten(1, (2, count)).contiguous())


@cache
def _tops(queries: int, others: int, device: torch.device) -> Tensor:
    """Return the largest integers, float32 [queries + others, 1]."""
    return torch.tensor([TOP_16] * queries + [TOP] * others, dtype=torch.float32, device=device)[:, None]


def _normed(x: Tensor, weight: Tensor | None, norms: Norms) -> Tensor:
    return x if weight is None else x * rms_inverse(x, norms.epsilon)[..., None] * weight


def _rotated(x: Tensor, rotary: Rotary) -> Tensor:
    """Rotate heads [R, heads, size] to [2, R, heads, size]: for the window, and for the first block."""
    a, b = x.chunk(2, -1)
    cosine, sine = (part[:, :, None] for part in rotary)
    return torch.cat([a * cosine - b * sine, a * sine + b * cosine], -1)


def attend(queries: Queries, shape: Shape, positions: Tensor, kv: LayerCache) -> Tensor:
    """Return attention, float32 [R, heads * size].

    Args:
        queries: quantised.
        shape: of the heads.
        positions: int64 [lanes, n].
        kv: the cache of the layer.
    """
    lanes, n = positions.shape
    seen, met = _seen(positions, shape, kv.scales.shape[-1]), _KeysValues(shape, kv)
    integers, scales = (part.unflatten(0, (lanes, n)) for part in queries)
    step = max(1, SCORES // (lanes * shape.heads * seen.shape[2]))
    found = [
        met.attended(integers[:, p].to(torch.float32), scales[:, p], seen[:, p])
        for p in (slice(start, start + step) for start in range(0, n, step))
    ]
    return torch.cat(found, 1).reshape(lanes * n, -1)


def _seen(positions: Tensor, shape: Shape, slots: int) -> Tensor:
    """Return which slots each position sees, bool [lanes, n, slots]."""
    slot, at, ring = torch.arange(slots, device=positions.device), positions[..., None], slots - BLOCK
    held = at - (at - slot) % ring  # latest position, at most the query's, in a slot of the ring
    first = (at // BLOCK - shape.window + 1).clamp(min=1)
    return torch.where(slot < BLOCK, slot <= at, held // BLOCK >= first)


class _KeysValues:
    """The keys and values of a layer as matrices for each head of each lane."""

    def __init__(self, shape: Shape, kv: LayerCache):
        self._shape, self._root = shape, root_of(shape.size)
        self._keys, self._values = kv.integers.flatten(1, 2).to(torch.float32)
        self._key_scales, self._value_scales = kv.scales.flatten(1, 2)[:, :, None]

    def attended(self, queries: Tensor, scales: Tensor, seen: Tensor) -> Tensor:
        """Return attention, float32 [lanes, n, heads * size].

        Args:
            queries: integers [lanes, n, 2, heads, size].
            scales: of the queries.
            seen: bool [lanes, n, slots].
        """
        lanes, n, _, count = queries.shape[:4]
        keys = self._keys.transpose(1, 2).split((BLOCK, self._keys.shape[1] - BLOCK), 2)
        scores, factors = [], []
        for part, integers, scale in zip(keys, queries.unbind(2), scales.unbind(2), strict=True):
            scores.append(split_product(self._by_group(integers), part))
            factors.append((self._by_group(scale[..., None]) * self._root).expand(-1, -1, part.shape[2]))
        z = torch.cat(scores, 2) * (torch.cat(factors, 2) * self._key_scales)
        mask = self._by_group(seen[:, :, None].expand(-1, -1, count, -1))
        z = torch.where(mask, z, _MASKED)
        shares = torch.where(mask, exp_negative(z - z.amax(-1, keepdim=True)), 0.0)
        total = torch.round(shares * _UNIT).sum(-1, dtype=torch.int64).to(torch.float64).to(torch.float32)
        weights, scale = quantise(shares * self._value_scales, TOP_16)
        found = split_product(weights, self._values) * quotient(scale * _UNIT, total)[..., None]
        return found.view(lanes, self._shape.groups, n, -1).transpose(1, 2).reshape(lanes, n, -1)

    def _by_group(self, x: Tensor) -> Tensor:
        """Reshape [lanes, n, heads, m] to [lanes * groups, n * heads of each, m]."""
        lanes, n, count, m = x.shape
        groups = self._shape.groups
        apart = x.view(lanes, n, groups, count // groups, m).transpose(1, 2)
        return apart.reshape(lanes * groups, -1, m)
