"""Scalar codes of least square error for normal values: what rotations and transforms leave is nearly normal."""

from functools import cache

import torch

__all__ = ["CURVED", "curve", "lloyd_max"]

CURVED = 4  # most bits of points that a curve tells
_TERMS = 8


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


@cache
def curve(bits: int) -> torch.Tensor:
    """Coefficients [8] of x, x^3, x^5, ... of the odd polynomial that goes through the points of `bits`, at most
    CURVED, at x = code / middle - 1 with middle = (2^bits - 1) / 2. In float32 it errs by some 2^-22: loops compute it
    for many codes at once, and look points up one by one."""
    count, middle = 1 << bits, ((1 << bits) - 1) / 2
    x = torch.arange(count // 2, count, dtype=torch.float64) / middle - 1
    powers = x[:, None] ** (2 * torch.arange(count // 2) + 1)
    found = torch.linalg.solve(powers, lloyd_max(bits)[count // 2 :].double())
    return torch.nn.functional.pad(found, (0, _TERMS - len(found))).to(torch.float32)
