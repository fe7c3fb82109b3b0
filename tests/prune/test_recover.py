"""Reconstruction of what is kept."""

import torch

from squeeze.checkpoint.masks import mask_of
from squeeze.checkpoint.pattern import Pattern
from squeeze.prune.recover import reconstruct
from tests.makers.layers import problem


def test_reconstruction_solves_each_row():
    weight, hessian = problem(8, 40)
    mask = mask_of(Pattern(), weight.abs())
    found = reconstruct(weight.double(), mask, hessian.double(), steps=200)
    for row, keep, values in zip(weight.double(), mask, found, strict=True):
        gram = hessian.double()[keep][:, keep]
        best = torch.linalg.solve(gram, hessian.double()[keep] @ row)
        torch.testing.assert_close(values[keep], best, rtol=1e-2, atol=1e-2)
        assert not values[~keep].any()
