"""Low rank: optimal where theory says so, and as large as what may be kept."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from squeeze.engine.method import HessianError, layer_error
from squeeze.factor.curvature import Curvature, damage
from squeeze.factor.lowrank import SVD, WhitenedSVD, maxvol, rank_for, root
from squeeze.factor.matrices import PIFA, Dense
from tests.makers.draws import Draws

draws = Draws(5)
matrix, moments = draws.matrix, draws.moments


@pytest.mark.parametrize("outputs, inputs", [(12, 30), (30, 12), (20, 20)])
@pytest.mark.parametrize("pivoted", [True, False])
def test_whitening_gives_the_optimum(outputs, inputs, pivoted):
    weight, hessian = matrix(outputs, inputs), moments(inputs)
    method = WhitenedSVD(rank=5, pivoted=pivoted, damping=1e-12)
    found = method.compress(weight, hessian).tensor
    inner, _ = root(hessian, 1e-12)
    singular = torch.linalg.svdvals(weight.double() @ inner).square()
    assert layer_error(weight, found.dequantize(), hessian) == pytest.approx(
        float(singular[5:].sum() / singular.sum()), rel=1e-3
    )
    plain = SVD(rank=5).compress(weight, hessian).tensor
    assert layer_error(weight, found.dequantize(), hessian) < layer_error(weight, plain.dequantize(), hessian)


def test_gradients_weigh_outputs():
    weight, hessian, gradients = matrix(20, 30), moments(30), moments(20)
    seen = Curvature(hessian, gradients, 100)
    one = WhitenedSVD(rank=6, outputs=gradients, damping=1e-12, output_damping=1e-12)
    found = one.compress(weight, hessian).tensor
    scaled = root(gradients, 1e-12)[0].T @ weight.double() @ root(hessian, 1e-12)[0]
    lost = 0.5 * float(torch.linalg.svdvals(scaled)[6:].square().sum())
    assert damage(found.dequantize() - weight, seen) == pytest.approx(lost, rel=1e-3)
    other = WhitenedSVD(rank=6).compress(weight, hessian).tensor
    assert damage(found.dequantize() - weight, seen) < damage(other.dequantize() - weight, seen)


def test_the_plain_svd_is_eckart_and_youngs():
    weight = matrix(17, 23)
    error = (SVD(rank=4).compress(weight).tensor.dequantize() - weight).norm()
    assert error == pytest.approx(float(torch.linalg.svdvals(weight)[4:].square().sum().sqrt()), rel=1e-4)


@given(st.integers(1, 60), st.integers(1, 60), st.floats(0.05, 1.0))
@settings(max_examples=100, deadline=None)
def test_ranks_spend_what_may_be_kept(outputs, inputs, keep):
    for pivoted in (True, False):
        rank = rank_for(outputs, inputs, keep, pivoted)
        values = [r * (outputs + inputs - (r if pivoted else 0)) for r in (rank, rank + 1)]
        assert rank == 1 or values[0] <= keep * outputs * inputs + 1e-6
        assert rank == min(outputs, inputs) or values[1] > keep * outputs * inputs - 1e-6


def test_a_matrix_of_low_rank_is_stored_in_fewer_values_without_loss():
    left, right = matrix(40, 9).double(), matrix(9, 30).double()
    form = SVD(rank=9).compress((left @ right).float()).tensor
    assert isinstance(form, PIFA)
    assert torch.allclose(form.dequantize(), (left @ right).float(), atol=1e-4)
    assert form.stored_bits == 32 * 9 * (40 + 30 - 9) + 8 * 5
    rows, terms = maxvol(left)
    assert torch.allclose(terms @ left[rows], left) and terms.abs().max() < 1.1
    full = SVD(keep=1.0).compress(matrix(12, 30)).tensor
    assert isinstance(full, Dense)


def test_singular_statistics_give_finite_factors():
    weight = matrix(10, 16)
    assert torch.isfinite(WhitenedSVD(rank=4).compress(weight, torch.zeros(16, 16)).tensor.dequantize()).all()
    one = torch.outer(*[matrix(16)] * 2)
    scale, inverse = root(one, 0.0)
    assert torch.allclose(scale @ scale.T, one.double(), atol=1e-3)
    assert torch.isfinite(inverse).all()
    with pytest.raises(HessianError, match="not finite"):
        root(one * torch.nan, 0.0)
