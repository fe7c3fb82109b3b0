"""Rounded activations: the numbers that compressed-tensors' own simulation gives, to the bit in float32."""

import pytest
import torch

from squeeze.quant.activations import ACTIVATIONS
from squeeze.quant.formats import compressed_tensors
from squeeze.quant.formats.spec import Grid


def inputs():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn((5, 7, 256), generator=generator) * torch.rand((5, 7, 1), generator=generator) * 40
    x[0, 0], x[1, 1, :16], x[2, 2, 5] = 0, 0, 700
    return x


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_they_are_rounded_as_the_package_does(name):
    package = pytest.importorskip("compressed_tensors.quantization", reason="compressed-tensors is not installed")
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize
    from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp

    grid, x = ACTIVATIONS[name], inputs()
    described = compressed_tensors.group([], Grid(4, 16, codebook="nvfp4", activations=name))["input_activations"]
    args = package.QuantizationArgs(**described)
    largest = x.abs().max() / 2  # what the calibration saw
    factor = grid.factor(largest).reshape(1)
    whole = factor if name == "nvfp4" else None
    if grid.ranged and whole is None:
        scale, zero = factor, None
    else:
        scale, zero = compute_dynamic_scales_and_zp(x, args, torch.nn.Identity(), global_scale=whole)
    expected = fake_quantize(x, scale, zero, args, global_scale=whole)
    assert torch.equal(grid(x, largest if grid.ranged else None), expected)
    assert not torch.equal(expected, x)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_their_type_stays_and_rounding_is_small(name):
    grid, x = ACTIVATIONS[name], torch.randn((4, 256), generator=torch.Generator().manual_seed(1)).bfloat16()
    found = grid(x, x.abs().amax().float())
    assert found.dtype == torch.bfloat16 and found.shape == x.shape
    error = float((found - x).float().norm() / x.float().norm())
    assert 0 < error < (0.15 if grid.kind == "fp4" else 0.04)


@pytest.mark.parametrize("name", [name for name, grid in ACTIVATIONS.items() if grid.ranged])
def test_a_range_comes_back_from_what_is_stored(name):
    grid, largest = ACTIVATIONS[name], torch.tensor(3.25)
    assert torch.allclose(grid.largest(grid.factor(largest)).float(), largest)
    stored = torch.linspace(300, 400, 999)
    assert all(torch.equal(grid.factor(grid.largest(one)), one) for one in stored), "the same bits as the folder has"
    assert grid.factor(None) == 1
