"""SparseGPT against the textbook in float64, with and without a grid."""

import pytest
import torch

from squeeze.checkpoint.pattern import Pattern
from squeeze.checkpoint.sparse import SparseTensor, violations
from squeeze.engine.method import layer_error
from squeeze.errors import SqueezeError
from squeeze.prune.sparsegpt import SparseGPT
from squeeze.quant.gptq import GPTQ
from tests.makers.layers import problem


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


@pytest.mark.parametrize("pattern", ["2:4", "4:8", "1:4"])
def test_sparsegpt_chooses_the_masks_of_the_textbook(pattern):
    chosen = Pattern.parse(pattern)
    same = total = 0
    for seed in range(4):
        weight, hessian = problem(64, 192, seed)
        wanted, mask = textbook(weight, hessian, chosen.n, chosen.m)
        found = SparseGPT(pattern=chosen, refine=0, reconstruct=0).apply(weight, hessian)
        agrees = (found.mask == mask).reshape(64, -1, chosen.m).all(-1)
        same, total = same + int(agrees.sum()), total + agrees.numel()
        assert (found.dequantize() - wanted).norm() < 0.02 * wanted.norm()
        exact = SparseGPT.textbook(pattern=chosen).apply(weight, hessian)
        assert torch.equal(exact.mask, mask)
        torch.testing.assert_close(exact.dequantize(torch.float64), wanted.float().double())
    assert same >= 0.995 * total


@pytest.mark.parametrize("asymmetric", [False, True])
def test_pruning_and_quantising_in_one_pass(asymmetric):
    weight, hessian = problem(48, 128)
    grid = GPTQ(bits=4, group_size=32, symmetric=not asymmetric)
    textbook = SparseGPT.textbook(quantizer=GPTQ.textbook(bits=4, group_size=32, dynamic=False))
    two = grid.apply(SparseGPT.textbook().apply(weight, hessian).dequantize(), hessian).dequantize()
    errors = []
    for found in (SparseGPT(quantizer=grid).apply(weight, hessian), textbook.apply(weight, hessian)):
        dense = found.dequantize()
        assert isinstance(found, SparseTensor) and violations(Pattern(), dense) == 0
        assert torch.equal(dense, found.values.dequantize())  # codes outside the mask stand for 0
        errors.append(layer_error(weight, dense, hessian))
    assert errors[0] < errors[1]
    assert errors[0] < layer_error(weight, two.masked_fill(~found.mask, 0), hessian)
    assert found.stored_bits == pytest.approx(48 * 128 * (2 + 0.6462 + 16 / 32), rel=1e-3)


def test_zeros_that_are_there_are_kept():
    weight, hessian = problem(16, 64)
    pruned = SparseGPT().apply(weight, hessian)
    grid = GPTQ(bits=4, group_size=32)
    found = SparseGPT(keep_zeros=True, quantizer=grid).apply(pruned.sparse(), hessian)
    assert torch.equal(found.mask, pruned.sparse() != 0)
    assert torch.equal(SparseGPT(keep_zeros=True).apply(pruned.sparse(), hessian).sparse(), pruned.sparse())
    with pytest.raises(SqueezeError, match="expected a matrix that is pruned to 2:4"):
        SparseGPT(keep_zeros=True, quantizer=grid).apply(weight, hessian)
