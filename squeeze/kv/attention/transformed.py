"""Decoding steps on the CPU over transform-coded tokens, some thousands at a time.

A key is R (B y + m), R the rotary embedding of its position and y the coded channels: keys are transformed back and
rotated once for all query heads, by cosines and sines that all heads and layers share. No value is transformed back:
the weighted sum of values is B (sum of w y) + m (sum of w), so y is summed, and B used once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import torch

from squeeze.kv.attention import loops
from squeeze.kv.transform import GROUP, TransformCoder, scales
from squeeze.kv.unpacking import tiles

__all__ = ["outputs", "scores"]

_TILE = 4096  # tokens whose channels are in memory at once


def scores(
    coder: TransformCoder, fields: dict[str, torch.Tensor], rows: torch.Tensor, start: int, out: torch.Tensor
) -> None:
    """rows [G, D] times the keys of one head, into out [G, tokens]. fields: [blocks, T, ...], from position `start`."""
    tokens, tables, mean = out.shape[1], None, coder.mean.numpy()
    if coder.frequencies is not None:
        tables = _cos_sin(coder.frequencies, start, -(-tokens // _TILE) * _TILE)
    keys = rows.new_empty((len(mean), min(tokens, _TILE)))
    numbers = keys.numpy()
    for first, channels in _tiles(coder, fields):
        here = keys[:, : channels.shape[1]]
        torch.mm(coder.back, channels, out=here)
        if tables is None:
            here += coder.mean[:, None]
        else:
            loops.rotate(numbers, channels.shape[1], mean, *tables, first)
        out[:, first : first + channels.shape[1]] = rows @ here


@lru_cache(maxsize=4)  # all heads and layers rotate by the same
def _cos_sin(frequencies: torch.Tensor, start: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines, [pairs, tokens]."""
    angle = frequencies[:, None] * torch.arange(start, start + tokens, dtype=torch.float32)
    return angle.cos().numpy(), angle.sin().numpy()


def outputs(coder: TransformCoder, fields: dict[str, torch.Tensor], weights: torch.Tensor, out: torch.Tensor) -> None:
    """weights [G, tokens] times the values of one head, added to out [G, D]."""
    sums = weights.new_zeros((len(weights), coder.back.shape[1]))
    for first, channels in _tiles(coder, fields):
        sums.addmm_(weights[:, first : first + channels.shape[1]], channels.T)
    out += sums @ coder.back.T + weights.sum(1, keepdim=True) * coder.mean


def _tiles(coder: TransformCoder, fields: dict[str, torch.Tensor]) -> Iterator[tuple[int, torch.Tensor]]:
    """First token and channels [K, tokens] of each tile."""
    return tiles(fields["codes"].flatten(0, 1), fields["scale"].flatten(0, 1), scales(), coder.widths, GROUP, _TILE)
