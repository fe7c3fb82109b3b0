"""The compiled loops of GPTQ do what operations on whole columns do."""

import pytest
import torch

from squeeze.engine.method import layer_error
from squeeze.quant import refine
from squeeze.quant.block_grid import BlockGrid
from squeeze.quant.codebooks import Codebook, Float8
from squeeze.quant.gptq import GPTQ
from squeeze.quant.grid import Integer
from squeeze.quant.rtn import RTN

METHODS = {
    "symmetric": GPTQ(bits=3, group_size=48),
    "asymmetric": GPTQ(bits=4, group_size=64, symmetric=False),
    "a scale a row": GPTQ(bits=8, group_size=-1),
    "in float64": GPTQ(bits=2, group_size=64, exact=True),
    "with outliers": GPTQ(bits=3, group_size=64, outliers=5),
    **{
        grid: GPTQ(grid=grid, group_size=64)
        for grid in ("whole", "nf4", "nf4-nested", "nf4-fp8", "mxfp4", "nvfp4", "ternary")
    },
    **{grid: GPTQ(grid=grid) for grid in ("fp8", "fp8-tensor")},
    **{grid: GPTQ(grid=grid) for grid in ("q4_1", "q2_k", "q3_k", "iq4_nl")},
}


@pytest.fixture(scope="module")
def matrix():
    """A weight [70, 512], and the Hessian of inputs that depend on each other."""
    random = torch.Generator().manual_seed(5)
    weight = torch.randn((70, 512), generator=random) * 0.05
    inputs = torch.randn((900, 512), generator=random) @ torch.randn((512, 512), generator=random)
    inputs[:, 17] = 0
    return weight, inputs.T @ inputs / len(inputs)


@pytest.fixture
def by_torch(monkeypatch):
    """Run without the compiled loops."""

    def without():
        for grid in (Integer, Codebook, BlockGrid, Float8):
            monkeypatch.setattr(grid, "levels_of", lambda self, params: None)

    return without


def differ(one, other):
    return float((one.codes != other.codes).float().mean())


@pytest.mark.parametrize("name", METHODS)
def test_codes_are_those_of_whole_columns(name, matrix, by_torch):
    weight, hessian = matrix
    found = METHODS[name].apply(weight, hessian)
    by_torch()
    wanted = METHODS[name].apply(weight, hessian)
    assert differ(found, wanted) < (0.03 if name == "nf4-nested" else 2e-3)  # roundings decide what lies midway
    errors = [layer_error(weight, tensor.dequantize(torch.float32), hessian) for tensor in (found, wanted)]
    assert errors[0] == pytest.approx(errors[1], rel=0.01)


@pytest.mark.parametrize("name", ["symmetric", "iq4_nl"])
def test_threads_change_nothing(name, matrix, monkeypatch):
    monkeypatch.setattr("squeeze.quant.columns._LEAST_WORK", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    several = METHODS[name].apply(*matrix)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert differ(several, METHODS[name].apply(*matrix)) == 0


def test_codes_outside_a_mask_stay(matrix, by_torch):
    weight, hessian = matrix
    method = METHODS["asymmetric"]
    params = method.fit(weight, hessian.diagonal(), torch.float16)
    codes = method.apply(weight, hessian).codes
    mask = torch.rand(weight.shape, generator=torch.Generator().manual_seed(1)) < 0.5
    found, _ = refine.refine(method, weight, hessian, codes, params, torch.float16, mask)
    assert torch.equal(found[~mask], codes[~mask]) and not torch.equal(found, codes)
    by_torch()
    wanted, _ = refine.refine(method, weight, hessian, codes, params, torch.float16, mask)
    assert float((found != wanted).float().mean()) < 2e-3


@pytest.mark.parametrize("grid", [Integer(4, True, True), Integer(3, False, True), METHODS["nf4"].as_quantizer()])
@pytest.mark.parametrize("weighted", ["all alike", "by input", "each"])
def test_scales_are_those_of_the_least_error(grid, weighted, by_torch):
    random = torch.Generator().manual_seed(3)
    weight = torch.randn((300, 5, 64), generator=random) * 0.05
    shapes = {"by input": (1, 5, 64), "each": weight.shape}
    importance = torch.rand(shapes[weighted], generator=random) if weighted in shapes else None
    found = grid.fit(weight, importance, torch.float16)
    by_torch()
    wanted = grid.fit(weight, importance, torch.float16)
    assert float((found.scale != wanted.scale).float().mean()) < 2e-3
    assert torch.allclose(found.scale, wanted.scale, rtol=0.1)


@pytest.mark.parametrize("method", [RTN(), RTN(grid="nf4"), GPTQ(), GPTQ(grid="mxfp4")])
def test_parameters_that_learn_and_weights_near_nothing_are_rounded(method, matrix):
    weight, hessian = matrix
    given = () if isinstance(method, RTN) else (hessian,)
    expected = method.apply(weight, *given)
    assert torch.equal(method.apply(torch.nn.Parameter(weight), *given).codes, expected.codes)
    small = method.apply((weight * 1e-40).bfloat16(), *given).dequantize(torch.float32)
    assert torch.isfinite(small).all() and float(small.abs().max()) < 1e-37


def test_a_matrix_without_rows_has_no_codes(matrix):
    assert RTN().apply(matrix[0][:0]).codes.shape == (0, 512)
    assert GPTQ().apply(matrix[0][:0], torch.eye(512)).codes.shape == (0, 512)
