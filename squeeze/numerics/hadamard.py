"""Hadamard matrices in torch: of every order that classical constructions give, and block-diagonal for other orders."""

from functools import cache

import torch

from squeeze.numerics.constants import constant_on

__all__ = ["block_hadamard", "hadamard", "rotate_blocks"]


@cache
def hadamard(n: int) -> torch.Tensor | None:
    """Return a Hadamard matrix [n, n] of +1 and -1, float64, by Sylvester's, Paley's and Kronecker constructions, or
    None.
    """
    if n in (1, 2):
        return _sylvester(n, torch.float64)
    if n % 4:
        return None
    if (n - 1) % 4 == 3 and _is_prime(n - 1):
        return _bordered(n - 1, -1) + torch.eye(n, dtype=torch.float64)
    if (n // 2 - 1) % 4 == 1 and _is_prime(n // 2 - 1):
        core, eye = _bordered(n // 2 - 1, 1), torch.eye(n // 2, dtype=torch.float64)
        one, other = torch.tensor([[1.0, 1], [1, -1]]).double(), torch.tensor([[1.0, -1], [-1, -1]]).double()
        return torch.kron(core, one) + torch.kron(eye, other)
    for d in range(2, n // 2 + 1):
        if n % d == 0 and (a := hadamard(d)) is not None and (b := hadamard(n // d)) is not None:
            return torch.kron(a, b)
    return None


def block_hadamard(size: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return a symmetric orthogonal matrix [size, size], float32, that is its own inverse.

    It is block-diagonal. The blocks are normalised Sylvester matrices of the largest power of two that divides `size`.
    """
    block = size & -size
    small = constant_on(_normed(block), device)
    return small if block == size else torch.block_diag(*[small] * (size // block))


def rotate_blocks(values: torch.Tensor, most: int) -> torch.Tensor:
    """Rotate values [..., n] by a block-diagonal Hadamard matrix that is its own inverse, and keep their dtype.

    Args:
        values: The values. Blocks lie along the last dimension.
        most: The largest block, a power of two. Blocks are the largest power of two up to it that divides n.
    """
    block = min(values.shape[-1] & -values.shape[-1], most)
    if block <= 1:
        return values
    return (values.reshape(-1, block) @ constant_on(_normed(block), values.device).to(values.dtype)).reshape(
        values.shape
    )


@cache
def _normed(size: int) -> torch.Tensor:
    matrix: torch.Tensor = _sylvester(size, torch.float32) / size**0.5
    return matrix


def _sylvester(size: int, dtype: torch.dtype) -> torch.Tensor:
    """Return Sylvester's symmetric matrix of +1 and -1. `size` is a power of two."""
    matrix = torch.ones(1, 1, dtype=dtype)
    while matrix.shape[0] < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)], 0)
    return matrix


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))


def _bordered(q: int, sign: int) -> torch.Tensor:
    """Return Paley's conference matrix [q + 1, q + 1] of the quadratic residues modulo a prime q, bordered by ones."""
    residues = {i * i % q for i in range(1, q)}
    character = torch.tensor([0.0] + [1.0 if i in residues else -1.0 for i in range(1, q)], dtype=torch.float64)
    row = torch.arange(q)
    out = torch.zeros((q + 1, q + 1), dtype=torch.float64)
    out[1:, 1:] = character[(row[:, None] - row[None]) % q]
    out[0, 1:], out[1:, 0] = 1, sign
    return out
