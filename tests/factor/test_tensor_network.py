"""Tensor networks: within their bounds, within their budgets, and better with whitening."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from squeeze.engine.method import layer_error
from squeeze.errors import SqueezeError
from squeeze.factor.block_lowrank import BLAST, Monarch
from squeeze.factor.lowrank import SVD
from squeeze.factor.stored import FactorLinear, read_form
from squeeze.factor.tensor_network import TensorRing, TensorTrain, Tucker, factors_of, ring_svd, tt_svd, tucker_svd
from tests.makers.draws import Draws

draws = Draws(5)
matrix, moments = draws.matrix, draws.moments

shapes = st.lists(st.integers(1, 6), min_size=2, max_size=4)


@given(shapes, st.integers(0, 2**31), st.lists(st.integers(1, 8), min_size=3, max_size=3))
@settings(max_examples=200, deadline=None)
def test_errors_of_tensor_networks_are_within_their_bounds(sizes, seed, ranks):
    tensor = torch.randn(sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    cores, bound = tt_svd(tensor, ranks[: len(sizes) - 1])
    assert (contracted(cores) - tensor).norm() <= bound + 1e-9
    cores, bound = ring_svd(tensor, ranks[0], ranks[: len(sizes) - 1])
    assert (contracted(cores) - tensor).norm() <= bound + 1e-9
    core, factors, bound = tucker_svd(tensor, (ranks * 2)[: len(sizes)])
    for mode, factor in enumerate(factors):
        core = torch.tensordot(core, factor, ([mode], [1])).movedim(-1, mode)
    assert (core - tensor).norm() <= bound + 1e-6


def contracted(cores):
    merged = cores[0]
    for core in cores[1:]:
        merged = torch.tensordot(merged, core, ([-1], [0]))
    return torch.diagonal(merged, dim1=0, dim2=-1).sum(-1)


@pytest.mark.parametrize("hessian", [False, True])
@pytest.mark.parametrize("method", [TensorTrain, TensorRing, Tucker])
def test_at_full_rank_nothing_is_lost(method, hessian):
    weight = matrix(24, 36).double()
    one = method()
    object.__setattr__(one, "keep", 100.0)  # room for every rank
    found = one.decompose(weight, moments(36).double() if hessian else None).dequantize()
    assert (found - weight).norm() <= 1e-5 * weight.norm()


@pytest.mark.parametrize("method", [TensorTrain(modes=3), TensorTrain(), TensorRing(), Tucker(), Monarch(), BLAST()])
@pytest.mark.parametrize("keep", [0.5, 0.9])
def test_budgets_are_kept_and_more_is_better(method, keep):
    from dataclasses import replace

    weight, hessian = matrix(48, 32).bfloat16(), moments(32)
    form = replace(method, keep=keep).compress(weight, hessian).tensor
    assert form.stored_bits <= 16 * keep * weight.numel()
    less = replace(method, keep=0.3).compress(weight, hessian).tensor
    assert layer_error(weight, form.dequantize(), hessian) < layer_error(weight, less.dequantize(), hessian)
    layer = FactorLinear.of(form)
    x = matrix(3, 32)
    assert torch.allclose(layer(x), x @ form.dequantize().T, rtol=1e-3, atol=1e-3)
    assert type(read_form("m", form.tensors())) is type(form)


@pytest.mark.parametrize("method", [TensorTrain, Tucker])
def test_whitening_helps_tensor_networks(method):
    white, plain = 0.0, 0.0
    for _ in range(8):
        weight, hessian = matrix(48, 32), moments(32)
        forms = [method(keep=0.5, whiten=whiten).compress(weight, hessian).tensor for whiten in (True, False)]
        errors = [layer_error(weight, form.dequantize(), hessian) for form in forms]
        white, plain = white + errors[0], plain + errors[1]
    assert white < 0.95 * plain


def test_budgets_that_no_rank_fits():
    with pytest.raises(SqueezeError, match="expected to keep at least"):
        TensorTrain(keep=0.001).compress(matrix(16, 16), moments(16))
    with pytest.raises(SqueezeError, match="keep must be above 0"):
        Tucker(keep=0)
    with pytest.raises(SqueezeError, match="rank must be at least 1, got 0"):
        SVD(rank=0)


def test_a_size_is_split_into_factors_as_equal_as_possible():
    assert factors_of(576, 2) == (24, 24) and factors_of(1536, 3) == (8, 12, 16) and factors_of(7, 2) == (1, 7)
