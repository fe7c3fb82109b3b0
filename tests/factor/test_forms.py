"""Forms of factorised matrices: with entries kept, quantised factors, one row at a time, and of hardly any rank."""

import pytest
import torch

from squeeze.engine.method import layer_error
from squeeze.factor.block_lowrank import BLAST, Monarch
from squeeze.factor.form import packed_mask
from squeeze.factor.forms import read_form
from squeeze.factor.linear import FactorLinear
from squeeze.factor.lowrank import SVD, Identity, WhitenedSVD
from squeeze.factor.matrices import PIFA, Dense, SparseResidual
from squeeze.factor.outliers import Quantised, WithOutliers
from squeeze.factor.tensor_network import TensorRing, TensorTrain, Tucker
from squeeze.kernels.lowrank import cpu
from squeeze.quant.gptq import GPTQ

SEED = torch.Generator().manual_seed(6)


def matrix(*shape):
    return torch.randn(shape, generator=SEED)


def moments(size):
    inputs = matrix(4 * size, size) * torch.logspace(0, -2, size)
    return inputs.T @ inputs / len(inputs)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("outputs, inputs, rank", [(33, 47, 21), (64, 5, 3), (7, 90, 1), (12, 12, 12)])
def test_one_row_times_a_pivoted_matrix(dtype, outputs, inputs, rank, monkeypatch):
    """In one call where it is small: what the definition gives."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    mask = torch.zeros(outputs, dtype=torch.bool)
    mask[torch.randperm(outputs, generator=SEED)[:rank]] = True
    form = PIFA(packed_mask(mask), matrix(outputs - rank, rank).to(dtype), matrix(rank, inputs).to(dtype))
    x = matrix(1, inputs).to(dtype)
    assert cpu.fits(x, form.base, form.coefficients) == (dtype == torch.bfloat16)
    layer = FactorLinear.of(form)
    for parameter in layer.parameters():
        parameter.requires_grad_(True)
    with torch.no_grad():
        found = layer(x)
    assert not found.requires_grad and layer(x).requires_grad
    wanted = x.double() @ form.dequantize(torch.float64).T
    error = 1e-5 if dtype == torch.float32 else 1e-2
    assert (found.double() - wanted).norm() <= error * wanted.norm()
    monkeypatch.setattr(cpu, "fits", lambda *_: False)
    with torch.no_grad():
        torch.testing.assert_close(found, layer(x), rtol=2e-2 if dtype != torch.float32 else 1e-5, atol=1e-4)


def test_a_row_follows_weights_that_move():
    form = PIFA(packed_mask(torch.tensor([True, False, True])), matrix(1, 2), matrix(2, 4))
    layer, x = FactorLinear.of(form), matrix(1, 4).bfloat16()
    with torch.inference_mode():
        layer(x.float())
        layer.to(torch.bfloat16)
        assert layer(x).dtype == torch.bfloat16
        layer.base.data = -layer.base.data
        assert torch.equal(layer(x), -FactorLinear.of(form).to(torch.bfloat16)(x))
    whole = matrix(1200, 1800)
    assert not cpu.fits(x, whole, whole) and not cpu.fits(x.expand(2, 4), form.base, form.coefficients)


@pytest.mark.parametrize("shape", [(30, 12), (12, 30)])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    "method",
    [
        *(SVD(keep=0.5), WhitenedSVD(keep=0.5), TensorTrain(keep=0.9), Tucker(keep=0.9), TensorRing(keep=0.95)),
        *(Monarch(keep=0.5), BLAST(keep=0.5), WithOutliers(SVD(keep=0.5), 3)),
        Quantised(WhitenedSVD(keep=0.5), GPTQ(bits=8, group_size=32)),
    ],
    ids=lambda method: method.name,
)
def test_matrices_of_hardly_any_rank(shape, rank, method):
    weight = (matrix(shape[0], rank) @ matrix(rank, shape[1])).bfloat16()
    for found in (method.compress(weight, torch.eye(shape[1])), method.fallback().compress(weight)):
        dense = found.tensor.dequantize()
        share = 0.4 if method.name in ("tt", "ring") else 0.01  # rank 1 is not that of their unfoldings
        assert dense.isfinite().all() and (dense - weight).norm() <= share * weight.norm() + 1e-6
