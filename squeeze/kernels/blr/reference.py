"""Products with block low-rank matrices, in plain torch: the definition."""

import torch

__all__ = ["blast", "monarch"]


def monarch(x: torch.Tensor, outer: torch.Tensor, inner: torch.Tensor) -> torch.Tensor:
    """x [T, Q i], outer [P, o, Q R], inner [Q, P R, i] -> [T, P o]."""
    (p, o, _), (q, pr, i) = outer.shape, inner.shape
    z = torch.bmm(x.view(-1, q, i).transpose(0, 1), inner.transpose(1, 2))  # [Q, T, P R]
    z = z.view(q, len(x), p, pr // p).permute(2, 1, 0, 3).reshape(p, len(x), -1)  # [P, T, Q R]
    return torch.bmm(z, outer.transpose(1, 2)).transpose(0, 1).reshape(len(x), p * o)


def blast(x: torch.Tensor, bases: torch.Tensor, mix: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """x [T, Q i], bases [P, o, R], mix [P, Q, R], inputs [Q, R, i] -> [T, P o]."""
    q, _, i = inputs.shape
    z = torch.bmm(x.view(-1, q, i).transpose(0, 1), inputs.transpose(1, 2))  # [Q, T, R]
    y = torch.einsum("pqr,qtr->ptr", mix, z)
    return torch.bmm(y, bases.transpose(1, 2)).transpose(0, 1).reshape(len(x), -1)
