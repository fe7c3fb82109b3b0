"""Products with a pair of factors, in plain torch: the definition."""

import torch
from torch.nn import functional

__all__ = ["multiply"]


def multiply(x: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """x [T, I], left [O, R], right [R, I] -> [T, O]."""
    return functional.linear(functional.linear(x, right), left)
