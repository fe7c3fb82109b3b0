"""Hadamard matrices: orthogonal, and the same for ever, as rotated checkpoints and coded KV caches need them."""

import hashlib

import pytest
import torch

from squeeze.numerics.hadamard import block_hadamard, hadamard, rotate_blocks


def digest(matrices):
    return hashlib.sha256(b"".join(matrix.numpy().tobytes() for matrix in matrices)).hexdigest()[:16]


def test_hadamard_matrices_are_orthogonal_signs():
    for n in (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 60, 64, 96, 128, 576):
        matrix = hadamard(n)
        assert matrix.abs().eq(1).all()
        assert torch.equal(matrix @ matrix.T, n * torch.eye(n, dtype=torch.float64))
    assert hadamard(6) is None
    assert hadamard(172) is None


def test_blocks_are_sylvesters():
    for size in (1, 2, 8, 24, 64, 96):
        block = size & -size
        signs = [[(-1.0) ** (row & column).bit_count() for column in range(block)] for row in range(block)]
        expected = torch.block_diag(*[torch.tensor(signs) / block**0.5] * (size // block))
        assert torch.equal(block_hadamard(size), expected)
        torch.testing.assert_close(block_hadamard(size) @ block_hadamard(size), torch.eye(size))


@pytest.mark.parametrize(("size", "block"), [(1, 1), (7, 1), (24, 8), (96, 16), (64, 16)])
def test_values_are_rotated_in_blocks(size, block):
    values = torch.randn(3, 2, size, generator=torch.Generator().manual_seed(0))
    expected = values @ torch.block_diag(*[block_hadamard(block)] * (size // block))
    torch.testing.assert_close(rotate_blocks(values, 16), expected)
    torch.testing.assert_close(rotate_blocks(rotate_blocks(values, 16), 16), values)


def test_both_are_what_they_were():
    assert digest(hadamard(n) for n in (1, 2, 4, 8, 12, 16, 20, 28, 32, 60, 64, 128, 576)) == "082f73984a1e6ed4"
    assert digest(block_hadamard(n) for n in (1, 2, 3, 8, 16, 24, 64, 80, 96, 128)) == "025b18feea31bcaa"
