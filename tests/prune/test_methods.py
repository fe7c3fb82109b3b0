"""Methods that prune a matrix, and the patterns they hold to."""

import pytest
import torch

from squeeze.checkpoint.pattern import Pattern, combinations_of
from squeeze.checkpoint.sparse import SparseTensor
from squeeze.engine.method import HessianError, layer_error
from squeeze.errors import SqueezeError
from squeeze.options import load
from squeeze.prune.magnitude import Magnitude
from squeeze.prune.method import PruningMethod
from squeeze.prune.methods import METHODS
from squeeze.prune.recover import reconstruct
from squeeze.prune.refine import can_refine, refine
from squeeze.prune.sparsegpt import SparseGPT
from squeeze.prune.wanda import Wanda
from squeeze.quant.gptq import GPTQ

PATTERNS = ["2:4", "4:8", "6:8", "1:4", "50%", "16x50%", "3:5"]


def problem(outputs=24, inputs=128, seed=0, tokens=400):
    """A weight and the Hessian of correlated inputs of unequal size."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn((inputs, inputs), generator=generator) / inputs**0.5 + torch.eye(inputs)
    sizes = torch.rand(inputs, generator=generator) * 3 + 0.1
    x = torch.randn((tokens, inputs), generator=generator) @ mix * sizes
    return torch.randn((outputs, inputs), generator=generator), x.T @ x / tokens


def textbook(weight, hessian, kept=2, of=4, damping=0.01):
    """SparseGPT column by column in float64, without blocks."""
    weight, hessian = weight.double().clone(), hessian.double().clone()
    hessian += damping * hessian.diagonal().mean() * torch.eye(len(hessian), dtype=torch.float64)
    upper = torch.linalg.cholesky(torch.linalg.inv(hessian), upper=True)
    mask = torch.ones(weight.shape, dtype=torch.bool)
    for j in range(weight.shape[1]):
        if j % of == 0:
            scores = weight[:, j : j + of] ** 2 / upper.diagonal()[j : j + of] ** 2
            mask[:, j : j + of].scatter_(1, scores.argsort(1)[:, : of - kept], False)
        error = torch.where(mask[:, j], 0, weight[:, j]) / upper[j, j]
        weight[:, j:] -= error[:, None] * upper[None, j, j:]
        weight[:, j] = torch.where(mask[:, j], weight[:, j], 0)
    return weight, mask


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
        assert chosen.violations(dense) == 0
        share = chosen.removed if not chosen.of else 1 - chosen.kept / chosen.of
        assert abs(float((dense == 0).float().mean()) - share) < (0.12 if chosen.unit > 1 else 0.04)
        assert torch.equal(dense != 0, found.mask)


def test_every_method_has_its_name():
    found = {method.name: method for method in PruningMethod.__subclasses__()}
    assert found == {name: load(method) for name, method in METHODS.items()}


def test_patterns_are_read_and_written():
    for text in PATTERNS:
        assert str(Pattern.parse(text)) == text
    for text, message in (
        ("2:0", "there are no groups of 0"),
        ("5:4", "N:M keeps N of M"),
        ("0:4", "N:M keeps N of M"),
        ("100%", "less than 100 %"),
        ("half", "name N:M such as 2:4"),
    ):
        with pytest.raises(SqueezeError, match=message):
            Pattern.parse(text)
    assert len(combinations_of(2, 4)) == 6
    assert Pattern().violations(torch.ones(2, 8)) == 4


@pytest.mark.parametrize("pattern", ["2:4", "4:8", "1:4"])
def test_sparsegpt_chooses_the_masks_of_the_textbook(pattern):
    chosen = Pattern.parse(pattern)
    same = total = 0
    for seed in range(4):
        weight, hessian = problem(64, 192, seed)
        wanted, mask = textbook(weight, hessian, chosen.kept, chosen.of)
        found = SparseGPT(pattern=chosen, refine=0, reconstruct=0).apply(weight, hessian)
        agrees = (found.mask == mask).reshape(64, -1, chosen.of).all(-1)
        same, total = same + int(agrees.sum()), total + agrees.numel()
        assert (found.dequantize() - wanted).norm() < 0.02 * wanted.norm()
        exact = SparseGPT.textbook(pattern=chosen).apply(weight, hessian)
        assert torch.equal(exact.mask, mask)
        torch.testing.assert_close(exact.dequantize(torch.float64), wanted.float().double())
    assert same >= 0.995 * total


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


def test_reconstruction_solves_each_row():
    weight, hessian = problem(8, 40)
    mask = Pattern().mask(weight.abs())
    found = reconstruct(weight.double(), mask, hessian.double(), steps=200)
    for row, keep, values in zip(weight.double(), mask, found, strict=True):
        gram = hessian.double()[keep][:, keep]
        best = torch.linalg.solve(gram, hessian.double()[keep] @ row)
        torch.testing.assert_close(values[keep], best, rtol=1e-2, atol=1e-2)
        assert not values[~keep].any()


def test_refinement_never_hurts_and_reaches_a_best_group():
    weight, hessian = (tensor.double() for tensor in problem(16, 32))
    values, _ = SparseGPT.textbook().sweep(weight, torch.linalg.cholesky(torch.linalg.inv(hessian), upper=True))
    before = layer_error(weight, values, hessian.float())
    for passes in (1, 2, 20):
        values, _ = refine(weight, hessian, values, Pattern(), passes)
        after = layer_error(weight, values, hessian.float())
        assert after <= before * (1 + 1e-6)
        before = after
    for choice in combinations_of(2, 4):  # no other mask of the third group is better with the others as they are
        other, keep = values.clone(), torch.zeros(32, dtype=torch.bool)
        keep[8:12] = choice
        other[:, 8:12] = 0
        gram, right = hessian[keep][:, keep], (weight - other) @ hessian[:, keep]
        other[:, keep] = torch.linalg.solve(gram, right.T).T
        energy = [(((weight - v) @ hessian) * (weight - v)).sum(1) for v in (values, other)]
        assert (energy[0] <= energy[1] * (1 + 1e-6)).all()
    assert can_refine(Pattern(4, 8)) and not can_refine(Pattern(8, 16))


def test_errors_order_as_they_should():
    weight, hessian = problem(48, 128)
    methods = [Magnitude(), Wanda(), SparseGPT.textbook(), SparseGPT(refine=0), SparseGPT()]
    errors = [layer_error(weight, method.apply(weight, hessian).dequantize(), hessian) for method in methods]
    assert errors == sorted(errors, reverse=True)
    assert errors[4] < 0.85 * errors[2]


@pytest.mark.parametrize("asymmetric", [False, True])
def test_pruning_and_quantising_in_one_pass(asymmetric):
    weight, hessian = problem(48, 128)
    grid = GPTQ(bits=4, group_size=32, symmetric=not asymmetric)
    textbook = SparseGPT.textbook(quantizer=GPTQ.textbook(bits=4, group_size=32, dynamic=False))
    two = grid.apply(SparseGPT.textbook().apply(weight, hessian).dequantize(), hessian).dequantize()
    errors = []
    for found in (SparseGPT(quantizer=grid).apply(weight, hessian), textbook.apply(weight, hessian)):
        dense = found.dequantize()
        assert isinstance(found, SparseTensor) and Pattern().violations(dense) == 0
        assert torch.equal(dense, found.values.dequantize())  # codes outside the mask stand for 0
        errors.append(layer_error(weight, dense, hessian))
    assert errors[0] < errors[1]
    assert errors[0] < layer_error(weight, two.masked_fill(~found.mask, 0), hessian)
    assert found.stored_bits == pytest.approx(48 * 128 * (2 + 0.6462 + 16 / 32), rel=1e-3)


def test_statistics_that_do_not_serve():
    weight, hessian = problem()
    for method in (Wanda(), SparseGPT()):
        with pytest.raises(HessianError, match="needs a Hessian of that size"):
            method.compress(weight)
        with pytest.raises(HessianError, match="is not finite"):
            method.compress(weight, hessian * torch.inf)
        assert method.fallback() == Magnitude()
    hessian[3], hessian[:, 3] = 0, 0
    result = SparseGPT().compress(weight, hessian)
    assert result.notes == ("1 inputs are always 0",)


def test_zeros_that_are_there_are_kept():
    weight, hessian = problem(16, 64)
    pruned = SparseGPT().apply(weight, hessian)
    grid = GPTQ(bits=4, group_size=32)
    found = SparseGPT(keep_zeros=True, quantizer=grid).apply(pruned.sparse(), hessian)
    assert torch.equal(found.mask, pruned.sparse() != 0)
    assert torch.equal(SparseGPT(keep_zeros=True).apply(pruned.sparse(), hessian).sparse(), pruned.sparse())
    with pytest.raises(SqueezeError, match="zeros to keep: a matrix has weights beyond 2:4"):
        SparseGPT(keep_zeros=True, quantizer=grid).apply(weight, hessian)
