"""Trellis codes: decoded from the format's text alone, by torch, by numba and by Triton; and products with them."""

from statistics import NormalDist

import numpy as np
import pytest
import torch

from squeeze.kernels import trellis
from squeeze.kernels.trellis import cpu, reference
from tests.makers.gpu import DEVICES

RATES = (16, 17, 32, 36, 41, 52, 63, 64)


def column(data, rows, rate):
    """A column's levels, as docs/format.md has it."""
    number, found = int.from_bytes(data, "little"), []
    for row in range(rows):
        state = (number >> (row * rate // 16)) % 4096
        place = (state * 0x94F475CF % 2**32) >> 20
        found.append(round(256 * NormalDist().inv_cdf((place + 0.5) / 4096)) / 256)
    return found


def draw(columns, rows, rate):
    generator = torch.Generator().manual_seed(rows + rate)
    shape = (columns, trellis.column_bytes(rows, rate))
    codes = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    if spare := -(rows * rate // 16) % 8:
        codes[:, -1] >>= spare  # bits that no row has are zeros
    return codes


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("rows", [1, 7, 16, 33, 100])
def test_every_decoder_follows_the_format(rows, rate):
    codes = draw(5, rows, rate)
    expected = torch.tensor([column(bytes(data.tolist()), rows, rate) for data in codes]).T
    assert torch.equal(reference.decode(codes, rows, rate), expected)
    assert torch.equal(trellis.decode(codes, rows, rate), expected)


@pytest.mark.parametrize("rows", [1, 100, 513, 1200])
def test_products_are_those_of_the_levels(rows):
    codes, x = draw(40, rows, 36), torch.randn(3, 40, generator=torch.Generator().manual_seed(1))
    expected = x @ reference.decode(codes, rows, 36).T
    found = cpu.matmul(x, cpu.padded(codes), rows, 36)
    assert torch.allclose(found, expected, atol=1e-4)  # sums in another order
    several = cpu.matmul(x, cpu.padded(codes), rows, 36, threads=2)
    assert torch.equal(several, found)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rate", [16, 36, 63])
def test_triton_decodes_as_the_reference(device, rate):
    pytest.importorskip("triton", reason="triton is not installed")
    from squeeze.kernels.trellis import kernel

    codes = draw(5, 70, rate)
    assert torch.equal(kernel.decode(codes.to(device), 70, rate).cpu(), reference.decode(codes, 70, rate))


def test_levels_are_nearly_normal():
    levels = reference.levels().numpy()
    assert len(levels) == 4096
    assert abs(levels.mean()) < 0.01
    assert np.isclose(levels.var(), 1, atol=0.01)
