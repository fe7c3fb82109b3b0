"""Decoding steps on the CPU over transform-coded tokens, some at a time: no key is turned, no value transformed back.

A key is R (B y + m), R the rotary embedding of its position and y the coded channels, so a score sums, over the pairs
of channels that R turns, products with cosines and sines that all heads and layers share. The weighted sum of values is
B (sum of w y) + m (sum of w): y is summed, and B used once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numba
import numpy as np
import torch

from squeeze.kv.transform import GROUP, TransformCoder
from squeeze.kv.unpacking import channels_of

__all__ = ["outputs", "scores"]

_TILE = 1024  # tokens whose channels are in memory at once


def scores(
    coder: TransformCoder, fields: dict[str, torch.Tensor], rows: torch.Tensor, start: int, out: torch.Tensor
) -> None:
    """rows [G, D] times the keys of one head, into out [G, tokens]. fields: [blocks, T, ...], from position `start`."""
    turns = None if coder.frequencies is None else _turns(coder.frequencies, start, -(-out.shape[1] // _TILE))
    for at, channels in _tiles(coder, fields):
        keys = torch.addmm(coder.mean[:, None], coder.back, channels)  # [D, tokens]
        span = slice(at, at + keys.shape[1])
        if turns is None:
            out[:, span] = rows @ keys
            continue
        here = rows.new_zeros((len(rows), keys.shape[1]))
        _turned(rows.contiguous().numpy(), keys.numpy(), *turns[at // _TILE], here.numpy())
        out[:, span] = here


@lru_cache(maxsize=4)  # all heads and layers turn by the same
def _turns(frequencies: torch.Tensor, start: int, tiles: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Cosines and sines of each tile, [pairs, _TILE]."""
    angle = frequencies[:, None] * torch.arange(start, start + tiles * _TILE, dtype=torch.float32)
    return [(part.cos().numpy(), part.sin().numpy()) for part in angle.split(_TILE, 1)]


def outputs(coder: TransformCoder, fields: dict[str, torch.Tensor], weights: torch.Tensor, out: torch.Tensor) -> None:
    """weights [G, tokens] times the values of one head, added to out [G, D]."""
    sums = weights.new_zeros((len(weights), coder.back.shape[1]))
    for at, channels in _tiles(coder, fields):
        sums.addmm_(weights[:, at : at + channels.shape[1]], channels.T)
    out += sums @ coder.back.T + weights.sum(1, keepdim=True) * coder.mean


def _tiles(coder: TransformCoder, fields: dict[str, torch.Tensor]) -> Iterator[tuple[int, torch.Tensor]]:
    """First token and channels [K, tokens] of each tile."""
    packed, scale = fields["codes"].flatten(0, 1), coder.scale_of(fields["scale"].flatten(0, 1))
    for at in range(0, len(packed), _TILE):
        span = slice(at, at + _TILE)
        yield at, channels_of(packed[span], scale[span], coder.widths, GROUP)


@numba.njit(nogil=True, cache=True, fastmath=True)
def _turned(rows, keys, cos, sin, out):  # type: ignore[no-untyped-def]
    """out[g, t] += rows[g] . R_t keys[:, t]; cos, sin: [n, tokens or more], of the pairs (i, n + i)."""
    pairs = cos.shape[0]
    for g in range(rows.shape[0]):
        for i in range(pairs):
            a, b = rows[g, i], rows[g, pairs + i]
            for t in range(keys.shape[1]):
                c, d = keys[i, t], keys[pairs + i, t]
                out[g, t] += (a * c + b * d) * cos[i, t] + (b * c - a * d) * sin[i, t]
        for i in range(2 * pairs, rows.shape[1]):
            for t in range(keys.shape[1]):
                out[g, t] += rows[g, i] * keys[i, t]
