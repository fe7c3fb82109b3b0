"""Methods that prune a matrix, and the patterns they hold to."""

import pytest
import torch

from squeeze.checkpoint.pattern import Pattern
from squeeze.checkpoint.sparse import violations
from squeeze.engine.method import HessianError, layer_error
from squeeze.options import load
from squeeze.prune.method import PruningMethod
from squeeze.prune.methods import METHODS
from squeeze.prune.scores import Magnitude, Wanda
from squeeze.prune.sparsegpt import SparseGPT
from tests.makers.layers import problem

PATTERNS = ["2:4", "4:8", "6:8", "1:4", "50%", "16x50%", "3:5"]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_holds_to_every_pattern(name, pattern):
    chosen = Pattern.parse(pattern)
    for inputs in (128, 131):
        weight, hessian = problem(inputs=inputs)
        before = weight.clone()
        found = load(METHODS[name])(pattern=chosen).apply(weight, hessian)
        assert torch.equal(weight, before)
        dense = found.sparse()
        assert violations(chosen, dense) == 0
        share = chosen.removed if not chosen.m else 1 - chosen.n / chosen.m
        assert abs(float((dense == 0).float().mean()) - share) < (0.12 if chosen.unit > 1 else 0.04)
        assert torch.equal(dense != 0, found.mask)


def test_every_method_has_its_name():
    found = {method.name: method for method in PruningMethod.__subclasses__()}
    assert found == {name: load(method) for name, method in METHODS.items()}


def test_wanda_and_magnitude_keep_weights_as_they_are():
    weight, hessian = problem()
    found = Wanda().apply(weight.bfloat16(), hessian)
    scores = weight.bfloat16().float().abs() * hessian.diagonal().sqrt()
    lowest = scores.reshape(24, 32, 4).masked_fill(~found.mask.reshape(24, 32, 4), torch.inf).amin(-1)
    assert (scores.reshape(24, 32, 4).masked_fill(found.mask.reshape(24, 32, 4), 0).amax(-1) <= lowest).all()
    assert torch.equal(found.dequantize(torch.bfloat16), weight.bfloat16() * found.mask)
    rows = Wanda(pattern=Pattern.parse("75%")).apply(weight, hessian).mask.sum(1)
    assert (rows == 32).all()
    units = Magnitude(pattern=Pattern.parse("16x50%")).apply(weight).mask.reshape(24, 8, 16)
    assert torch.equal(units.any(-1), units.all(-1))


def test_errors_order_as_they_should():
    weight, hessian = problem(48, 128)
    methods = [Magnitude(), Wanda(), SparseGPT.textbook(), SparseGPT(refine=0), SparseGPT()]
    errors = [layer_error(weight, method.apply(weight, hessian).dequantize(), hessian) for method in methods]
    assert errors == sorted(errors, reverse=True)
    assert errors[4] < 0.85 * errors[2]


def test_statistics_that_do_not_serve():
    weight, hessian = problem()
    for method in (Wanda(), SparseGPT()):
        with pytest.raises(HessianError, match="expected a Hessian of"):
            method.compress(weight)
        with pytest.raises(HessianError, match="is not finite"):
            method.compress(weight, hessian * torch.inf)
        assert method.fallback() == Magnitude()
    hessian[3], hessian[:, 3] = 0, 0
    result = SparseGPT().compress(weight, hessian)
    assert result.notes == ("1 inputs are always 0",)
