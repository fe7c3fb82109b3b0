"""Making an archive policy from statistics: the basis of each group of layers, and one quantiser step for all."""

from __future__ import annotations

import math
from typing import Any

import torch

from squeeze.errors import PolicyError
from squeeze.kv.archive.policy import Archive, Basis
from squeeze.kv.rotary import frequencies_of
from squeeze.kv.statistics import JointMoments, KVStatistics, Observed

__all__ = ["archive_policy"]

_DAMPING = 1e-4  # share of the mean diagonal that is added to the second moments of gradients
_LEAST = 0.18  # coefficients with a smaller deviation, as a share of a step, are left out
_LEVELS = 64  # magnitudes whose shares are added up for an entropy
_GAUSSIAN = math.log2(2 * math.pi * math.e) / 2  # the entropy of a Gaussian variable of deviation 1, in bits
_MAGNITUDE = 0.7  # mean magnitude of a coefficient, as a share of its deviation


def archive_policy(
    model: Any, statistics: dict[int, KVStatistics], bits: float = 1.0, *, sinks: int = 4, window: int = 64
) -> Archive:
    """Return an Archive whose files take about `bits` per value.

    The step follows from the entropy of rounded Gaussian coefficients of the same variances.

    Args:
        model: The model.
        statistics: Its statistics, with joint moments.
        bits: The bits per value in the mean over the model, first tokens left out.
        sinks: The number of first tokens that a file has in 16 bits, not transformed.
        window: The number of latest tokens that are coded more finely.

    Raises:
        PolicyError: The statistics have no joint moments, heads differ in size, or the bits are out of bounds.
    """
    groups = statistics.joint if isinstance(statistics, Observed) else ()
    if not groups:
        raise PolicyError("an archive needs joint moments of the layers: observe the model with `joint`")
    if not 0.05 <= bits <= 8:
        raise PolicyError(f"bits must be from 0.05 to 8, got {bits}")
    found = [(moments, *_whitened(moments, statistics)) for moments in groups]
    step = _step_at(torch.cat([variance for _, _, _, variance, _ in found]).sqrt(), bits)
    bases = tuple(_basis(*parts, step) for parts in found)
    return Archive(bases, step, float(bits), frequencies_of(model), sinks, window)


def _whitened(
    moments: JointMoments, statistics: dict[int, KVStatistics]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return L [m, D, D] and mean [m, D] of each head, and variances [n], descending, with their vectors [n, n]."""
    fisher = [statistics[layer].fisher[kind] for layer in moments.layers for kind in (0, 1)]
    if len({one.shape[-1] for one in fisher}) != 1:
        raise PolicyError("an archive needs keys and values of one size")
    every = torch.cat(fisher)
    diagonal = every.diagonal(dim1=-2, dim2=-1).mean(-1).clamp(min=1e-30)
    lower = torch.linalg.cholesky(every + torch.eye(every.shape[-1]) * (_DAMPING * diagonal)[:, None, None])
    wide = torch.block_diag(*lower)
    covariance = moments.moment - moments.mean[:, None] * moments.mean
    variance, vectors = torch.linalg.eigh(wide.T @ covariance @ wide)
    mean = moments.mean.unflatten(0, lower.shape[:2])
    return lower, mean, variance.flip(0).clamp(min=0), vectors.flip(1)


def _step_at(deviations: torch.Tensor, bits: float) -> float:
    """Return the step at which Gaussian coefficients of these deviations have an entropy of `bits` on average."""
    low, high = 1e-30, float(deviations.max().clamp(min=1e-29)) * 100
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if float(_entropy(deviations / middle).mean()) > bits else (low, middle)
    return high


def _entropy(deviations: torch.Tensor) -> torch.Tensor:
    """Return the entropy in bits of Gaussian variables of these deviations that are rounded to integers."""
    edges = (torch.arange(_LEVELS, dtype=torch.float64) + 0.5) / deviations.clamp(min=1e-3)[:, None]
    above = torch.special.ndtr(-edges)
    shares = above[:, :-1] - above[:, 1:]
    zero, others = 1 - 2 * above[:, 0], -2 * torch.special.xlogy(shares, shares).sum(1)
    fine = deviations.clamp(min=1).log2() + _GAUSSIAN
    return torch.where(deviations > _LEVELS / 8, fine, (others - torch.special.xlogy(zero, zero)) / math.log(2))


def _basis(
    moments: JointMoments,
    lower: torch.Tensor,
    mean: torch.Tensor,
    variance: torch.Tensor,
    vectors: torch.Tensor,
    step: float,
) -> Basis:
    kept = int((variance.sqrt() > _LEAST * step).sum())
    expected = (variance[:kept].sqrt() * (_MAGNITUDE * 256 / step)).round().clamp(1, 1 << 30)
    return Basis(
        moments.layers,
        lower.float(),
        mean.float(),
        vectors[:, :kept].half().contiguous(),
        expected.to(torch.int32),
    )
