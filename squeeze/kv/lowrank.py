"""Low-rank KV caches: leading principal components of keys and values, next to a window in full precision.

CSKV (Wang et al., "CSKV: training-efficient channel shrinking for KV cache in long-context scenarios", 2024) without
fine-tuning; the components are stored in few bits.
"""

from __future__ import annotations

from typing import Any

import torch

from squeeze.errors import PolicyError
from squeeze.kv.rotary import frequencies_of
from squeeze.kv.statistics import KVStatistics
from squeeze.kv.transform import GROUP, MOST_BITS, Transform, TransformCoder

__all__ = ["low_rank_policy"]


def low_rank_policy(
    model: Any,
    statistics: dict[int, KVStatistics],
    rank: int = 32,
    bits: int = 4,
    *,
    sinks: int = 4,
    window: int = 64,
    block: int = 32,
) -> Transform:
    """Return a policy that keeps the first `rank` principal components of each head in `bits` bits each.

    Args:
        model: The model.
        statistics: Its statistics.
        rank: The number of components, a multiple of 8.
        bits: Bits of a component.
        sinks: The number of first tokens in full precision.
        window: The number of latest tokens in full precision.
        block: The number of tokens that are coded at a time.

    Raises:
        PolicyError: A head has fewer components.
    """
    if rank <= 0 or rank % GROUP or not 1 <= bits <= MOST_BITS:
        raise PolicyError(f"rank must be a multiple of {GROUP}, and bits from 1 to {MOST_BITS}")
    frequencies, layers, total = frequencies_of(model), [], []
    for layer in range(max(statistics) + 1):
        heads = []
        if layer in statistics:
            for kind in (0, 1):
                coders = _coders(statistics[layer], kind, rank, bits, frequencies if kind == 0 else None)
                total += [coder.bits(block, coder.mean.numel()) for coder in coders]
                heads.append(coders)
        layers.append(tuple(zip(*heads, strict=True)))
    return Transform(tuple(layers), sum(total) / len(total), sinks, window, block)


def _coders(
    statistics: KVStatistics, kind: int, rank: int, bits: int, frequencies: torch.Tensor | None
) -> list[TransformCoder]:
    mean, moment = statistics.mean[kind], statistics.moment[kind]
    if rank > mean.shape[-1]:
        raise PolicyError(f"rank must be at most {mean.shape[-1]}, the channels of a head, got {rank}")
    variance, vectors = torch.linalg.eigh(moment - mean[..., :, None] * mean[..., None, :])
    variance, vectors = variance.flip(-1)[:, :rank].clamp(min=1e-30), vectors.flip(-1)[..., :rank]
    widths = (bits,) * (rank // GROUP)
    return [
        TransformCoder(
            widths, (v / s).T.float().contiguous(), (v * s).float(), m.float(), s.square().float(), frequencies
        )
        for v, s, m in zip(vectors, variance.sqrt(), mean, strict=True)
    ]
