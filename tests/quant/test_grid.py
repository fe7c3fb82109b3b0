"""Grids: the nearest level is taken, clipping helps, scales are those that are stored."""

import pytest
import torch

from squeeze.quant.codebooks import CODEBOOKS, FLOATS, Float8
from squeeze.quant.grid import Integer, PerTensor, QParams, error
from squeeze.quant.rtn import RTN

WEIGHT = torch.randn((6, 5, 64), generator=torch.Generator().manual_seed(2)) * 0.05
GRIDS = {
    f"{bits}-{kind}": Integer(bits, kind == "sym", clip)
    for bits in (2, 3, 4, 6, 8)
    for kind in ("sym", "asym")
    for clip in (False, True)
}
GRIDS |= {f"{bits}-whole": PerTensor(bits) for bits in (2, 3, 4, 5, 8)} | CODEBOOKS
GRIDS["fp8"] = FLOATS["fp8"]


def test_every_codebook_is_tested_and_stored_in_its_bits():
    for name, codebook in CODEBOOKS.items():
        assert codebook.codebook.shape[1] <= 1 << codebook.bits, name
        assert codebook.codebook.shape[0] == (2 if name.endswith("-planes") else 1)


@pytest.mark.parametrize("name", GRIDS)
def test_no_level_is_nearer_than_the_one_taken(name):
    grid = GRIDS[name]
    params = grid.fit(WEIGHT, None, torch.float16)
    quantizer = 1 << grid.bits if grid.codebook is None else grid.codebook.shape[1]
    found = (grid.decode(grid.encode(WEIGHT, params), params) - WEIGHT).abs()
    for code in range(quantizer):
        if name == "fp8" and code % 128 == 127:  # no number
            continue
        other = grid.decode(torch.full(WEIGHT.shape, code, dtype=torch.uint8), params)
        assert (found <= (other - WEIGHT).abs() + 1e-6).all()


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [2, 3, 4])
def test_clipping_lowers_the_error_that_it_is_asked_to_lower(bits, symmetric):
    importance = torch.rand(WEIGHT.shape, generator=torch.Generator().manual_seed(1))
    whole, clipped = (Integer(bits, symmetric, clip) for clip in (False, True))
    for weights in (None, importance):
        before = error(whole, WEIGHT, weights, whole.fit(WEIGHT, weights, torch.float16)).sum()
        after = error(clipped, WEIGHT, weights, clipped.fit(WEIGHT, weights, torch.float16)).sum()
        assert after < before
    mine, other = (clipped.fit(WEIGHT, weights, torch.float16) for weights in (importance, None))
    assert error(clipped, WEIGHT, importance, mine).sum() < error(clipped, WEIGHT, importance, other).sum()


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_one_scale_for_all_has_nearly_the_least_error_of_any(bits):
    importance = torch.rand(WEIGHT.shape, generator=torch.Generator().manual_seed(1))
    grid = PerTensor(bits)
    for weights in (None, importance):
        found = grid.fit(WEIGHT, weights, torch.float16)
        assert len(found.scale.unique()) == 1
        top = 2 * WEIGHT.abs().max() / ((1 << bits) - 1)
        tried = [QParams((top * share).expand(found.scale.shape)) for share in torch.linspace(0.05, 1, 300)]
        least = min(error(grid, WEIGHT, weights, params).sum() for params in tried)
        assert error(grid, WEIGHT, weights, found).sum() < 1.02 * least


@pytest.mark.parametrize("name", GRIDS)
def test_zeros_stay_zeros(name):
    grid, zeros = GRIDS[name], torch.zeros((2, 3, 32))
    params = grid.fit(zeros, None, torch.float16)
    assert torch.isfinite(params.scale).all()
    assert grid.decode(grid.encode(zeros, params), params).abs().max() == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scales_are_what_is_stored(dtype):
    for grid in (Integer(4, False, True), CODEBOOKS["nf4"], CODEBOOKS["ternary-planes"]):
        scale = grid.fit(WEIGHT, None, dtype).scale
        assert torch.equal(scale, scale.to(dtype).float())
    powers = CODEBOOKS["mxfp4"].fit(WEIGHT, None, dtype).scale
    assert torch.equal(powers, powers.to(torch.float8_e8m0fnu).float())


def test_nvfp4_scales_are_float8_below_one_factor():
    weight = torch.randn((4, 64), generator=torch.Generator().manual_seed(1)) * torch.logspace(-3, 0, 4)[:, None]
    for size, factor in ((1, 2.0**-8), (1000, 2.0)):
        found = RTN(grid="nvfp4").apply(size * weight)
        assert found.group_size == 16 and float(found.global_scale) == factor
        assert torch.equal(found.scales, found.scales.to(torch.float8_e4m3fn).float())
        assert (found.dequantize() - size * weight).norm() < 0.12 * size * weight.norm()


@pytest.mark.parametrize(("rows", "scales"), [(1, 8), (4, 2), (-1, 1)])
def test_rows_that_share_a_scale_of_fp8(rows, scales):
    weight = WEIGHT.repeat(2, 1, 1)[:8, :1] * torch.logspace(-1, 1, 8)[:, None, None]
    found = Float8(rows=rows).fit(weight, None, torch.bfloat16).scale
    assert torch.equal(found, found.bfloat16().float()) and len(found.unique()) == scales
    grid = Float8(rows=rows)
    values = grid.decode(grid.encode(weight, QParams(found)), QParams(found))
    assert ((values - weight).abs() <= weight.abs() / 15 + found[0, :, :, None] * 2**-10).all()


def test_two_planes_of_trits_are_better_than_one():
    errors = {}
    for name in ("ternary", "ternary-planes"):
        found = RTN(grid=name, group_size=64).apply(WEIGHT.reshape(6, -1))
        errors[name] = float((found.dequantize() - WEIGHT.reshape(6, -1)).norm())
        assert found.scales.shape[0] == len(found.codebook)
    assert errors["ternary-planes"] < 0.6 * errors["ternary"]


def test_nf4_with_fp8_scales_needs_whole_groups():
    """Check that there is no shorter last group, which would have a factor of its own: the tensor stores one."""
    method = RTN(grid="nf4-fp8", group_size=32)
    assert method.misfit(40) == "nf4-fp8 needs a multiple of 32 inputs, got 40" and method.misfit(64) is None
    found = method.apply(torch.randn(4, 64, generator=torch.Generator().manual_seed(0)))
    assert found.scale_bits == 8 and found.scales.shape == (1, 4, 2)
    assert found.stored_bits == 4 * 64 * 4 + 8 * 8 + 32


@pytest.mark.parametrize(("name", "top", "least"), [("fp6-e3m2", 28.0, 0.0625), ("fp6-e2m3", 7.5, 0.125)])
def test_levels_of_fp6_are_those_of_the_ocp_formats(name, top, least):
    (levels,) = CODEBOOKS[name].planes
    positive = levels[:32]
    assert len(levels) == 64 and list(positive) == sorted(positive) and levels[32:] == tuple(-one for one in positive)
    assert (positive[0], positive[1], positive[-1]) == (0.0, least, top)
    exponents, mantissas = (3, 4) if name == "fp6-e3m2" else (2, 8)
    for code, value in enumerate(positive):
        exponent, mantissa = divmod(code, mantissas)
        bias = (1 << exponents - 1) - 1
        fraction = mantissa / mantissas + (exponent > 0)
        assert value == fraction * 2.0 ** (max(exponent, 1) - bias)


@pytest.mark.parametrize("name", ["fp6-e3m2", "fp6-e2m3"])
def test_fp6_rounds_to_the_nearest_level(name):
    weight = torch.randn(6, 64, generator=torch.Generator().manual_seed(1))
    tensor = RTN(grid=name, group_size=32).apply(weight)
    levels = torch.tensor(CODEBOOKS[name].planes[0])
    scaled = weight.view(6, 2, 32) / tensor.scales[0].float()[..., None]
    nearest = (scaled[..., None] - levels).abs().amin(-1)
    found = (scaled - tensor.dequantize().view(6, 2, 32) / tensor.scales[0].float()[..., None]).abs()
    assert tensor.bits == 6 and torch.allclose(found, nearest, atol=1e-5)
