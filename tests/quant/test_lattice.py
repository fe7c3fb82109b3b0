"""Types of GGUF whose weights are points of a table: points are the nearest, and lose less than single weights."""

import pytest
import torch

from squeeze.quant.blocks import GRIDS
from squeeze.quant.gptq import GPTQ
from squeeze.quant.lattice import LatticeGrid, point_order
from tests.makers.layers import problem

LATTICES = [name for name, grid in GRIDS.items() if isinstance(grid, LatticeGrid)]


def nearest_of_all(grid, values, weights):
    """Return the least errors [N] of signed points for values [N, dims], weighted with weights [dims]."""
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * grid.dims)
    if grid.even:
        signs = signs[signs.prod(1) > 0]
    squares = (values[:, None] * signs)[..., None, :].unflatten(-1, (-1, grid.length)) - grid.points[:, None]
    return (squares.square() * weights.unflatten(0, (-1, grid.length))).sum(-1).amin(2).sum(-1).amin(1)


@pytest.mark.parametrize("name", LATTICES)
def test_points_are_the_nearest(name):
    grid, generator = GRIDS[name], torch.Generator().manual_seed(1)
    values = grid.levels[-1] * torch.randn(20, grid.dims, generator=generator) / 2
    weights = torch.rand(grid.dims, generator=generator) + 0.2
    found = grid.nearest(values, weights.diag())
    least = nearest_of_all(grid, values, weights)
    assert ((values - found).square() * weights).sum(1) == pytest.approx(least, rel=1e-4)
    if grid.even:
        assert ((found < 0).sum(1) % 2 == 0).all()


@pytest.mark.parametrize("name", LATTICES)
def test_every_point_has_its_number(name):
    grid = GRIDS[name]
    codes = grid.codes_of(grid.points * torch.tensor([1.0, -1.0]).repeat(grid.length // 2))
    assert grid.numbers(codes)[:, 0].tolist() == list(range(len(grid.points)))


@pytest.mark.parametrize(("name", "plain"), [("iq2_s", "q2_k"), ("iq3_s", "q3_k")])
def test_points_lose_less_than_single_weights_of_as_many_bits(name, plain):
    weight, hessian = problem(16, 512, tokens=900)
    lost = {}
    for one in (name, plain):
        tensor = GPTQ(grid=one).apply(weight, hessian)
        error = tensor.dequantize() - weight
        lost[one] = tensor.stored_bits, float(((error @ hessian) * error).sum())
    assert lost[name][0] <= lost[plain][0] and lost[name][1] < 0.85 * lost[plain][1]


@pytest.mark.parametrize("name", LATTICES)
@pytest.mark.parametrize(("spread", "most"), [(0.0, 1e-3), (0.1, 0.12)])
def test_weights_that_are_nearly_equal(name, spread, most):
    """Check rows on the only point of equal magnitudes that iq3_s has, that of the smallest."""
    noise = torch.randn(8, 256, generator=torch.Generator().manual_seed(1))
    signs = torch.where(noise > 0, 1, -1).unflatten(1, (-1, 8))
    if GRIDS[name].even:
        signs[..., -1] *= signs.prod(2)
    weight = (0.02 * (1 + spread * noise)) * signs.flatten(1)
    error = GPTQ(grid=name).fallback().apply(weight).dequantize() - weight
    assert float(error.norm() / weight.norm()) < most


def test_the_inputs_of_a_point_stay_together():
    diagonal = torch.tensor([1.0, 0, 0, 0, 9, 9, 0, 0, 5, 0, 0, 0])
    assert point_order(diagonal, 4).tolist() == [4, 5, 6, 7, 8, 9, 10, 11, 0, 1, 2, 3]


@pytest.mark.parametrize("name", LATTICES)
def test_compensation_lowers_the_error(name):
    weight, hessian = problem(8, 512, tokens=900)
    found = {}
    for order in (True, False):
        method = GPTQ(grid=name, act_order=order, refine=0)
        error = method.apply(weight, hessian).dequantize() - weight
        plain = method.fallback().apply(weight).dequantize() - weight
        found[order] = [float(((one @ hessian) * one).sum()) for one in (error, plain)]
        assert found[order][0] < 0.7 * found[order][1]
