"""Bit allocation for transform coding by reverse water-filling over the whole model."""

from __future__ import annotations

import heapq
from typing import Any

import torch

from squeeze.errors import PolicyError
from squeeze.kv.codes import lloyd_max
from squeeze.kv.rotary import frequencies_of
from squeeze.kv.statistics import KVStatistics
from squeeze.kv.transform import GROUP, MOST_BITS, Transform, TransformCoder

__all__ = ["transform_policy"]

_DAMPING = 1e-4  # share of the mean diagonal that is added to the second moments of gradients


def transform_policy(
    model: Any,
    statistics: dict[int, KVStatistics],
    bits: float = 2.0,
    *,
    sinks: int = 4,
    window: int = 64,
    block: int = 32,
) -> Transform:
    """Return a Transform of `bits` per value in the mean over the model, including scales, with more where errors cost
    more.

    Args:
        model: The model.
        statistics: Its statistics.
        bits: The mean bits per value.
        sinks: The number of first tokens in full precision.
        window: The number of latest tokens in full precision.
        block: The number of tokens that are coded at a time.

    Raises:
        PolicyError: The bits do not suffice for the scales, or the channels of heads are not a multiple of 8.
    """
    bases = [(layer, kind, _basis(of_layer, kind)) for layer, of_layer in sorted(statistics.items()) for kind in (0, 1)]
    sizes = torch.cat([variance.reshape(-1, GROUP).mean(-1) for _, _, (variance, _, _) in bases])
    heads = sum(len(variance) for _, _, (variance, _, _) in bases)
    values = sizes.numel() * GROUP
    spent = int((bits * values - 8 * heads) / GROUP)  # steps of a bit for each channel of a group
    if not 0 < spent <= MOST_BITS * sizes.numel():
        most = MOST_BITS + 8 * heads / values
        raise PolicyError(f"expected {8 * heads / values:.3f} to {most:.3f} bits per value, got {bits}")
    widths = iter(_water_filled(sizes, spent).split([variance.numel() // GROUP for _, _, (variance, _, _) in bases]))
    frequencies = frequencies_of(model)
    coders: dict[int, list[list[TransformCoder]]] = {}
    for layer, kind, (variance, into, back) in bases:
        rotary, of_heads = frequencies if kind == 0 else None, next(widths).reshape(len(variance), -1)
        rows = zip(of_heads, variance, into, back, statistics[layer].mean[kind], strict=True)
        coders.setdefault(layer, []).append([_coder(*row, rotary) for row in rows])
    table = tuple(tuple(zip(*coders.get(layer, [[], []]), strict=True)) for layer in range(max(coders) + 1))
    return Transform(table, (spent * GROUP + 8 * heads) / values, sinks, window, block)


def _basis(statistics: KVStatistics, kind: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return variances [H, D], descending, and the transforms to and from that basis, [H, D, D]."""
    mean, fisher = statistics.mean[kind], statistics.fisher[kind]
    size = mean.shape[-1]
    if size % GROUP:
        raise PolicyError(f"expected heads with a multiple of {GROUP} channels, got {size}")
    covariance = statistics.moment[kind] - mean[..., :, None] * mean[..., None, :]
    diagonal = fisher.diagonal(dim1=-2, dim2=-1).mean(-1).clamp(min=1e-30)
    lower = torch.linalg.cholesky(fisher + torch.eye(size) * (_DAMPING * diagonal)[..., None, None])
    variance, vectors = torch.linalg.eigh(lower.transpose(-1, -2) @ covariance @ lower)
    into = vectors.flip(-1).transpose(-1, -2) @ lower.transpose(-1, -2)
    return variance.flip(-1).clamp(min=1e-30), into, torch.linalg.inv(into)


def _coder(
    widths: torch.Tensor,
    variance: torch.Tensor,
    into: torch.Tensor,
    inverse: torch.Tensor,
    mean: torch.Tensor,
    frequencies: torch.Tensor | None,
) -> TransformCoder:
    coded_widths = tuple(int(width) for width in widths if width)
    channels, deviation = slice(0, GROUP * len(coded_widths)), variance.sqrt()
    return TransformCoder(
        coded_widths,
        (into / deviation[:, None])[channels].float().contiguous(),
        (inverse * deviation)[:, channels].float().contiguous(),
        mean.float(),
        variance[channels].float(),
        frequencies,
    )


def _water_filled(sizes: torch.Tensor, steps: int) -> torch.Tensor:
    """Return the bits of N groups: `steps` steps of one bit, each to the group whose error it lowers most."""
    errors = [1.0] + [_error(width) for width in range(1, MOST_BITS + 1)]
    widths = [0] * len(sizes)
    heap = [(-size * (errors[0] - errors[1]), group) for group, size in enumerate(sizes.tolist())]
    heapq.heapify(heap)
    for _ in range(steps):
        _, group = heapq.heappop(heap)
        widths[group] += 1
        width = widths[group]
        if width < MOST_BITS:
            heapq.heappush(heap, (-sizes[group].item() * (errors[width] - errors[width + 1]), group))
    return torch.tensor(widths)


def _error(width: int) -> float:
    """Return the mean square error of the Lloyd-Max points for a standard normal variable, 1 - E[point^2]."""
    points = lloyd_max(width).double()
    edges = (points[1:] + points[:-1]) / 2
    mass = torch.special.ndtr(torch.cat([edges, edges.new_tensor([torch.inf])])).diff(prepend=edges.new_zeros(1))
    return float(1 - (mass * points.square()).sum())
