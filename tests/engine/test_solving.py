"""Histograms against numpy's."""

import numpy as np
import pytest
import torch

from squeeze.engine.solving import BINS, histogram


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_histogram_counts_every_weight(dtype):
    before = torch.randn(1500, 800, generator=torch.Generator().manual_seed(1)).to(dtype)
    after = before.clone()
    after[before.abs() < 0.5] = 0
    found = histogram(before, after)
    assert before.abs().max() > found["bound"] and after.abs().max() > found["bound"]  # they are as they were
    assert found["bound"] == pytest.approx(4, rel=0.01)
    assert found["zeros"] == [int((before == 0).sum()), int((after == 0).sum())]
    for name, values in (("before", before), ("after", after)):
        assert sum(found[name]) + found["zeros"][name == "after"] == before.numel()
        kept = values[values != 0].double().numpy().clip(-found["bound"], found["bound"])
        wanted = np.histogram(kept, BINS, (-found["bound"], found["bound"]))[0]
        assert np.abs(np.array(found[name]) - wanted).sum() < 0.01 * before.numel()  # the bound is rounded


def test_a_histogram_of_one_value_has_a_bound():
    found = histogram(torch.full((2, 3), 0.5), torch.zeros(2, 3))
    assert (found["bound"], sum(found["before"]), found["zeros"]) == (0.5, 6, [0, 6])
    assert histogram(torch.zeros(2, 2), torch.zeros(2, 2))["bound"] == 1.0
