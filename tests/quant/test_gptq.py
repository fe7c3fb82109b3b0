"""GPTQ against the textbook in float64, and what each option is for, on matrices made on the spot."""

from functools import partial
from itertools import pairwise

import pytest
import torch

from squeeze.engine.method import HessianError, layer_error
from squeeze.errors import SqueezeError
from squeeze.quant.gptq import GPTQ, inverse_factor
from squeeze.quant.rtn import RTN


def problem(outputs=24, inputs=192, seed=0):
    """A weight [O, I] and the Hessian of correlated inputs of unequal size."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn((outputs, inputs), generator=generator) * 0.05
    mix = torch.randn((inputs, inputs), generator=generator) * torch.rand(inputs, generator=generator) ** 2
    x = torch.randn((3 * inputs, inputs), generator=generator) @ mix
    return weight, x.T @ x / len(x)


def textbook(weight, hessian, bits, group_size, symmetric, damping=0.01):
    """GPTQ as Frantar et al. write it, column by column in float64; group scales from the columns as they stand,
    rounded to float16. Returns codes and dequantised weights."""
    w, h = weight.double().clone(), hessian.double().clone()
    inputs, top = w.shape[1], 2**bits - 1
    dead = h.diagonal() == 0
    h[dead, dead] = 1
    w[:, dead] = 0
    h += damping * h.diagonal().mean() * torch.eye(inputs, dtype=torch.float64)
    upper = torch.linalg.cholesky(torch.linalg.inv(h), upper=True)
    codes, out = torch.zeros(w.shape, dtype=torch.int64), torch.zeros_like(w)
    for j in range(inputs):
        if j % group_size == 0:
            group = w[:, j : j + group_size]
            low, high = group.amin(1).clamp(max=0), group.amax(1).clamp(min=0)
            if symmetric:
                scale = (2 * torch.maximum(-low, high) / top).half().double()
                zero = torch.full_like(scale, 2 ** (bits - 1))
            else:
                scale = ((high - low) / top).half().double()
                zero = torch.round(-low / scale)
        codes[:, j] = torch.clamp(torch.round(w[:, j] / scale) + zero, 0, top)
        out[:, j] = scale * (codes[:, j] - zero)
        error = (w[:, j] - out[:, j]) / upper[j, j]
        w[:, j + 1 :] -= error[:, None] * upper[j, j + 1 :]
    return codes, out


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize(("group_size", "block_size"), [(64, 128), (32, 32), (96, 64), (192, 50)])
def test_the_textbooks_integers(bits, symmetric, group_size, block_size):
    weight, hessian = problem()
    wanted, values = textbook(weight, hessian, bits, group_size, symmetric)
    method = GPTQ.textbook(bits=bits, group_size=group_size, symmetric=symmetric, block_size=block_size)
    found = method.apply(weight, hessian)
    assert (found.codes == wanted).double().mean() >= 0.999
    ours, theirs = layer_error(weight, found.dequantize(), hessian), layer_error(weight, values, hessian)
    assert ours == pytest.approx(theirs, rel=1e-2)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("method", [RTN, GPTQ, partial(GPTQ, dynamic=True), partial(GPTQ, act_order=False)])
def test_each_bit_lowers_the_error(method, symmetric):
    """To less than 0.6 of it, and to no less than it would on a grid that is twice as fine."""
    weight, hessian = problem()
    errors = []
    for bits in range(3, 9):
        found = method(bits=bits, group_size=64, symmetric=symmetric).apply(weight, hessian)
        assert found.bits == bits and int(found.codes.max()) < 1 << bits
        errors.append(layer_error(weight, found.dequantize(), hessian))
    assert all(0.15 * a < b < 0.4 * a for a, b in pairwise(errors)), errors


def test_dead_inputs_are_rounded_to_nothing():
    weight, hessian = problem()
    hessian[5] = hessian[:, 5] = 0
    result = GPTQ(bits=4, group_size=64).compress(weight, hessian)
    assert torch.equal(result.tensor.dequantize()[:, 5], torch.zeros(24))
    assert result.notes == ("1 inputs are always 0",)


@pytest.mark.parametrize(
    "grid", ["integer", "nf4", "nf4-fp8", "mxfp4", "nvfp4", "fp6-e2m3", "ternary", "ternary-planes"]
)
def test_every_refinement_lowers_the_error(grid):
    weight, hessian = problem(16, 128)
    methods = [RTN(grid=grid, group_size=64), GPTQ(grid=grid, group_size=64, refine=0)]
    methods += [GPTQ(grid=grid, group_size=64, refine=n) for n in (1, 2)]
    errors = [layer_error(weight, method.apply(weight, hessian).dequantize(), hessian) for method in methods]
    assert errors == sorted(errors, reverse=True)
    assert errors[1] < 0.7 * errors[0]


def test_order_lowers_the_error():
    weight, hessian = problem()

    def error(**options):
        method = GPTQ(bits=3, group_size=64, refine=0, **options)
        return layer_error(weight, method.apply(weight, hessian).dequantize(), hessian)

    assert error(dynamic=True) < error(dynamic=True, act_order=False)
    assert error() < error(act_order=False)


@pytest.mark.parametrize(("damping", "refine"), [(0.01, 1), (0.1, 0)])  # what keeps columns is not refined
def test_outliers_are_kept_and_take_up_the_errors_of_the_others(damping, refine):
    weight, hessian = problem()
    weight = weight.bfloat16()
    method = GPTQ(bits=3, group_size=64, damping=damping, refine=refine)
    plain, kept = (method.replaced(outliers=n).apply(weight, hessian) for n in (0, 7))
    columns, values = kept.outliers
    assert sorted(columns.tolist()) == sorted(hessian.diagonal().argsort(descending=True)[:7].tolist())
    assert torch.equal(kept.dequantize(torch.bfloat16)[:, columns], values)
    assert not torch.equal(values, weight[:, columns])
    error = layer_error(weight, kept.dequantize(), hessian)
    assert error < layer_error(weight, plain.dequantize(), hessian)


@pytest.mark.parametrize("group_size", [-1, 40, 64, 1000])
def test_groups_of_any_size_are_quantised(group_size):
    weight, hessian = problem()
    found = GPTQ(bits=4, group_size=group_size).apply(weight, hessian)
    assert found.scales.shape[2] == -(-192 // (192 if group_size in (-1, 1000) else group_size))
    assert layer_error(weight, found.dequantize(), hessian) < 0.02


def test_damping_is_raised_until_it_is_enough_and_that_is_said():
    weight, hessian = problem()
    vector = hessian[0]
    indefinite = torch.outer(vector, vector) / vector.norm() ** 2
    indefinite -= 0.02 * indefinite.diagonal().mean() * torch.eye(192)
    result = GPTQ(bits=4, group_size=64, damping=0.01).compress(weight, indefinite)
    assert result.notes == ("damping raised to 0.1",)
    assert inverse_factor(hessian, 0.01)[1] == 0.01


def test_large_hessians_are_factorised_in_float32(monkeypatch):
    weight, hessian = problem()
    wanted = GPTQ(bits=4, group_size=64).apply(weight, hessian)
    monkeypatch.setattr("squeeze.quant.gptq.LARGE", 100)
    found = GPTQ(bits=4, group_size=64).apply(weight, hessian)
    ours, theirs = (layer_error(weight, tensor.dequantize(), hessian) for tensor in (found, wanted))
    assert ours == pytest.approx(theirs, rel=1e-2)


def test_hessians_that_cannot_be_used():
    weight, hessian = problem()
    with pytest.raises(HessianError, match="the Hessian is not finite"):
        GPTQ().apply(weight, hessian * torch.nan)
    with pytest.raises(HessianError, match="not positive definite"):
        GPTQ().apply(weight, -1e9 * hessian)
    with pytest.raises(HessianError, match="expected a Hessian of 192 x 192"):
        GPTQ().apply(weight, hessian[1:, 1:])


def test_inputs_are_untouched():
    weight, hessian = problem()
    before = weight.clone(), hessian.clone()
    GPTQ(bits=2, group_size=64, symmetric=False, outliers=3).apply(weight, hessian)
    GPTQ(bits=2, group_size=64).apply(weight, hessian)
    assert torch.equal(weight, before[0])
    assert torch.equal(hessian, before[1])


def test_parameters_that_make_no_sense():
    for options, message in (({"bits": 9}, "2 to 8"), ({"grid": "x"}, "unknown"), ({"group_size": 0}, "at least 1")):
        with pytest.raises(SqueezeError, match=message):
            GPTQ(**options)
    with pytest.raises(SqueezeError, match="mxfp4 needs a multiple of 32 inputs"):
        RTN(grid="mxfp4").apply(torch.zeros(2, 40))


@pytest.mark.parametrize("grid", ["integer", "nf4", "nvfp4", "mxfp4", "fp8", "ternary-planes"])
def test_every_grid_computes_in_float64_too(grid):
    weight, hessian = problem()
    errors = {}
    for exact in (False, True):
        method = GPTQ(bits=4, group_size=64, grid=grid, exact=exact)
        errors[exact] = layer_error(weight, method.apply(weight, hessian).dequantize(), hessian)
    assert errors[True] == pytest.approx(errors[False], rel=0.1)


@pytest.mark.parametrize("grid", ["nvfp4", "mxfp4", "fp8", "fp8-block", "fp8-tensor"])
def test_gptq_on_grids_of_floats(grid):
    weight, hessian = problem(inputs=256)
    rounded = RTN(grid=grid, group_size=-1).apply(weight).dequantize()
    errors = [layer_error(weight, rounded, hessian)]
    for refine in (0, 1):
        tensor = GPTQ(grid=grid, group_size=-1, refine=refine).apply(weight, hessian)
        errors.append(layer_error(weight, tensor.dequantize(), hessian))
    assert errors[2] < errors[1] < 0.8 * errors[0]
