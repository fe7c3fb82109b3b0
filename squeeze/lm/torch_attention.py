"""Attention of attention.py on torch's tensors: int8 keys and values in rings, all lanes and positions of a call at
once.

A query meets every slot of its lane's ring, and those that it does not see weigh 0. Sums are of integers, so that
neither they nor the order of slots change a bit.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from squeeze.lm.arrays import BLOCK
from squeeze.lm.config import Config
from squeeze.numerics.int8 import TOP, TOP_16
from squeeze.numerics.int8_tensors import split_product
from squeeze.numerics.tensors import angles, exp_negative, quantise, quotient, rms_inverse

_MASKED = -1e30
_UNIT = float(1 << 20)
SCORES = 1 << 24  # at once, unless one position of all lanes has more


class Cache(NamedTuple):
    """Keys (0) and values (1) of some lanes, quantised when they are written and never touched again."""

    integers: Tensor  # int8 [layers, 2, lanes, kv heads, slots, head size]
    scales: Tensor  # float32 [layers, 2, lanes, kv heads, slots]

    @classmethod
    def zeros(cls, config: Config, lanes: int, ring: int, device: str) -> "Cache":
        """For so many blocks in the ring beside the first block, which stays."""
        shape = (config.layers, 2, lanes, config.kv_heads, BLOCK * (1 + ring))
        integers = torch.zeros((*shape, config.head_size), dtype=torch.int8, device=device)
        return cls(integers, torch.zeros(shape, dtype=torch.float32, device=device))

    def lanes(self, begin: int, end: int) -> "Cache":
        """Of these lanes, in the same memory."""
        return Cache(*(tensor[:, :, begin:end] for tensor in self))

    def moved(self, device: str) -> "Cache":
        """A copy on another device."""
        return Cache(*(tensor.to(device, copy=True) for tensor in self))

    def take(self, other: "Cache") -> None:
        """Become equal to `other`, wherever that lies."""
        for mine, theirs in zip(self, other, strict=True):
            mine.copy_(theirs)


class Norms(NamedTuple):
    """The weights of norms of queries and keys in a layer, float32 [head size]."""

    query: Tensor | None
    key: Tensor | None
    epsilon: float

    def of(self, x: Tensor, weight: Tensor | None) -> Tensor:
        return x if weight is None else x * rms_inverse(x, self.epsilon)[..., None] * weight


class Attention:
    """For the rows of one call: where their keys go, what they see, and how far they are turned."""

    def __init__(self, config: Config, cache: Cache, window: int, table: Tensor, positions: np.ndarray):
        """window: blocks; table: of `angles`; positions: int64 [lanes, n]."""
        self._config, self._cache = config, cache
        at = torch.tensor(positions, device=table.device)
        far = BLOCK * window + BLOCK - 1
        met = torch.stack([at, at.clamp(max=far)])  # as they meet the window, and the first block
        turns = angles(table, config.attention_factor, met, int(positions.max()))
        self._cosine, self._sine = (part[:, :, :, None] for part in turns)
        slots = cache.scales.shape[-1]
        ring = slots - BLOCK
        self._lanes = torch.arange(at.shape[0], device=at.device)[:, None]
        self._slots = torch.where(at < BLOCK, at, BLOCK + (at - BLOCK) % ring)
        slot, at = torch.arange(slots, device=at.device), at[..., None]
        held = at - (at - slot) % ring  # the latest position up to it that is kept in a slot of the ring
        first = (at // BLOCK - window + 1).clamp(min=1)
        self._seen = torch.where(slot < BLOCK, slot <= at, held // BLOCK >= first)  # [lanes, n, slots]
        tops = [TOP_16] * (2 * config.heads) + [TOP] * (2 * config.kv_heads)
        self._tops = torch.tensor(tops, dtype=torch.float32, device=at.device)[:, None]

    def __call__(self, layer: int, qkv: Tensor, norms: Norms) -> Tensor:
        """float32 [lanes * n, heads * head size] from queries, keys and values [lanes * n, ...]; keys and values go to
        the cache."""
        heads, groups = self._config.heads, self._config.kv_heads
        lanes, n = self._slots.shape
        queries, keys, values = qkv.view(lanes, n, -1, self._config.head_size).split((heads, groups, groups), 2)
        queries, keys = norms.of(queries, norms.query), norms.of(keys, norms.key)
        near, far = self._turned(torch.cat([queries, keys], 2))
        parts, scales = quantise(torch.cat([far[:, :, :heads], near, values], 2), self._tops)
        for kept, new in zip(self._cache, (parts.to(torch.int8), scales), strict=True):
            written = new[:, :, 2 * heads :].unflatten(2, (2, groups))
            kept[layer].movedim((1, 3), (0, 1))[self._lanes, self._slots] = written
        seen = _Seen(*(tensor[layer] for tensor in self._cache))
        step = max(1, SCORES // (lanes * heads * self._seen.shape[2]))
        found = [
            seen.attended(parts[:, p, : 2 * heads], scales[:, p, : 2 * heads], self._seen[:, p])
            for p in (slice(start, start + step) for start in range(0, n, step))
        ]
        return torch.cat(found, 1).reshape(lanes * n, -1)

    def _turned(self, x: Tensor) -> Tensor:
        """Rotary embedding of heads [lanes, n, heads, size], [2, ...]: for the window, and for the first block."""
        a, b = x.chunk(2, -1)
        return torch.cat([a * self._cosine - b * self._sine, a * self._sine + b * self._cosine], -1)


class _Seen:
    """Keys and values of a layer, as queries meet them: a matrix for each head of each lane."""

    def __init__(self, integers: Tensor, scales: Tensor):
        self._groups, self._size = integers.shape[2], integers.shape[4]
        self._keys, self._values = integers.flatten(1, 2).to(torch.float32)
        self._key_scales, self._value_scales = scales.flatten(1, 2)[:, :, None]
        self._root = float(np.float32(1.0) / np.sqrt(np.float32(self._size)))

    def attended(self, queries: Tensor, scales: Tensor, seen: Tensor) -> Tensor:
        """float32 [lanes, n, heads * size] of queries as they meet the first block and then as they meet the window,
        integers [lanes, n, 2 * heads, size] with their scales; seen: bool [lanes, n, slots]."""
        lanes, n, twice = queries.shape[:3]
        keys = self._keys.transpose(1, 2).split((BLOCK, self._keys.shape[1] - BLOCK), 2)
        scores, factors = [], []
        for part, integers, scale in zip(keys, queries.chunk(2, 2), scales.chunk(2, 2), strict=True):
            scores.append(split_product(self._by_group(integers), part))
            factors.append((self._by_group(scale[..., None]) * self._root).expand(-1, -1, part.shape[2]))
        z = torch.cat(scores, 2) * (torch.cat(factors, 2) * self._key_scales)
        mask = self._by_group(seen[:, :, None].expand(-1, -1, twice // 2, -1))
        z = torch.where(mask, z, _MASKED)
        shares = torch.where(mask, exp_negative(z - z.amax(-1, keepdim=True)), 0.0)
        total = torch.round(shares * _UNIT).sum(-1, dtype=torch.int64).to(torch.float64).to(torch.float32)
        weights, scale = quantise(shares * self._value_scales, TOP_16)
        found = split_product(weights, self._values) * quotient(scale * _UNIT, total)[..., None]
        return found.view(lanes, self._groups, n, -1).transpose(1, 2).reshape(lanes, n, -1)

    def _by_group(self, x: Tensor) -> Tensor:
        """[lanes, n, heads, m] to [lanes * kv heads, n * heads of each, m]."""
        lanes, n, heads, m = x.shape
        apart = x.view(lanes, n, self._groups, heads // self._groups, m).transpose(1, 2)
        return apart.reshape(lanes * self._groups, -1, m)
