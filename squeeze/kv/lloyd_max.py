"""Scalar codes of least square error for normal values: what rotations and transforms leave is nearly normal."""

from functools import cache

import torch

__all__ = ["lloyd_max"]


@cache
def lloyd_max(bits: int) -> torch.Tensor:
    """Points [2^bits], ascending, of least mean square error for a standard normal variable (Max 1960, Lloyd 1982)."""
    points: torch.Tensor = torch.special.ndtri((torch.arange(1 << bits, dtype=torch.float64) + 0.5) / (1 << bits))
    normal = torch.distributions.Normal(torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64))
    for _ in range(2000):
        edges = (points[1:] + points[:-1]) / 2
        inner_density, inner_mass = normal.log_prob(edges).exp(), normal.cdf(edges)
        zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
        density, mass = torch.cat([zero, inner_density, zero]), torch.cat([zero, inner_mass, one])
        points = (density[:-1] - density[1:]) / (mass[1:] - mass[:-1])
    return points.to(torch.float32)
