"""Refinement of masks."""

import torch

from squeeze.checkpoint.pattern import Pattern
from squeeze.checkpoint.sparse import combinations_of, mask_of
from squeeze.engine.method import layer_error
from squeeze.prune.refine import can_refine, reconstruct, refine
from squeeze.prune.sparsegpt import SparseGPT
from tests.makers.layers import problem


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


def test_reconstruction_solves_each_row():
    weight, hessian = problem(8, 40)
    mask = mask_of(Pattern(), weight.abs())
    found = reconstruct(weight.double(), mask, hessian.double(), steps=200)
    for row, keep, values in zip(weight.double(), mask, found, strict=True):
        gram = hessian.double()[keep][:, keep]
        best = torch.linalg.solve(gram, hessian.double()[keep] @ row)
        torch.testing.assert_close(values[keep], best, rtol=1e-2, atol=1e-2)
        assert not values[~keep].any()
