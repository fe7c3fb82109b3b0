"""Entries kept beside a form, and factors that are quantised."""

import pytest
import torch

from squeeze.engine.method import layer_error
from squeeze.factor.lowrank import SVD, Identity, WhitenedSVD
from squeeze.factor.matrices import Dense, SparseResidual
from squeeze.factor.outliers import Quantised, WithOutliers
from squeeze.factor.stored import FactorLinear, read_form
from squeeze.quant.gptq import GPTQ
from tests.makers.draws import Draws

draws = Draws(6)
matrix, moments = draws.matrix, draws.moments


def test_entries_of_a_form_that_is_whole_or_moves():
    weight = matrix(6, 8)
    whole = WithOutliers(SVD(keep=1.0), 3).compress(weight).tensor
    assert torch.equal(whole.tensors()["weight"], weight) and len(whole.tensors()) == 1
    stored = weight.clone()
    exact = SparseResidual(Dense(stored), torch.tensor([5], dtype=torch.int32), torch.tensor([9.0]))
    assert exact.dequantize()[0, 5] == 9 and torch.equal(stored, weight)
    layer = FactorLinear.of(WithOutliers(SVD(rank=2), 3).compress(weight).tensor)
    x = matrix(2, 8)
    layer(x)
    layer.base.requires_grad_(True)
    for _ in range(2):  # a graph of its own each time
        layer(x).square().sum().backward()
        with torch.no_grad():
            layer.base.add_(layer.base.grad, alpha=-0.1)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), x @ layer.weight.T)


@pytest.mark.parametrize("method", [WhitenedSVD(rank=32), Identity(), Identity(pivoted=True)])
@pytest.mark.parametrize("calibrated", [True, False])
def test_quantised_factors_with_entries_kept(method, calibrated):
    """Without statistics, too, there is a form of as few bits."""
    weight, hessian = matrix(64, 96).bfloat16(), moments(96)
    weight[3, 4] = 100
    quantised = Quantised(WithOutliers(method, 3), GPTQ(bits=8, group_size=32))
    if calibrated:
        form = quantised.compress(weight, hessian).tensor
    else:
        form = quantised.fallback().compress(weight).tensor
    assert form.stored_bits < 9.5 * weight.numel() and form.dequantize()[3, 4] == 100
    read = read_form("m", form.tensors())
    assert torch.equal(read.dequantize(), form.dequantize())
    reached = hessian if calibrated else torch.eye(96)
    plain = method.compress(weight, hessian) if calibrated else method.fallback().compress(weight)
    assert (
        layer_error(weight, form.dequantize(), reached)
        < 1.1 * layer_error(weight, plain.tensor.dequantize(), reached) + 1e-3
    )


def test_outliers_are_kept_exactly():
    weight = matrix(20, 30).bfloat16()
    weight[3, 4] = 100
    form = WithOutliers(SVD(rank=2), 3).compress(weight).tensor
    assert form.dequantize()[3, 4] == 100
    x = matrix(5, 30)
    assert torch.allclose(FactorLinear.of(form)(x), x @ form.dequantize().T, rtol=1e-3, atol=1e-3)


def test_quantised_factors_fit_their_second_to_their_first():
    weight, hessian = matrix(64, 96).bfloat16(), moments(96)
    plain = WhitenedSVD(rank=32).compress(weight, hessian).tensor
    form = Quantised(WhitenedSVD(rank=32), GPTQ(bits=8, group_size=32)).compress(weight, hessian).tensor
    assert form.stored_bits < 0.6 * plain.stored_bits
    assert layer_error(weight, form.dequantize(), hessian) < 1.05 * layer_error(weight, plain.dequantize(), hessian)
