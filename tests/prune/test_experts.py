"""Parts of reducing a mixture of experts, on experts of a few weights."""

import pytest
import torch
from torch import nn

from squeeze.engine.experts import Expert, Experts, Layout
from squeeze.errors import SqueezeError
from squeeze.prune.experts.choosing import REAP, Norm, largest
from squeeze.prune.experts.counts import Counts, cut_config
from squeeze.prune.experts.fitting import Difference, fitted
from squeeze.prune.experts.merging import Merge, aligned
from squeeze.prune.experts.methods import METHODS
from squeeze.prune.experts.statistics import gathered
from squeeze.prune.experts.walk import Plan

WIDTH, INNER = 6, 10


class Whole(nn.Module):
    """Experts as transformers holds them, without a router."""

    def __init__(self, count):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(count, 2 * INNER, WIDTH))
        self.down_proj = nn.Parameter(torch.randn(count, WIDTH, INNER))

    def _apply_gate(self, both):
        gate, up = both.chunk(2, -1)
        return torch.relu(gate) * up


def experts(count, seed=0):
    torch.manual_seed(seed)
    return Experts.filled(Whole(count), Layout(transposed=False, interleaved=False, biased=False))


def routed(tokens, count, seed=1):
    """Return the experts [T, 2] of each token and their weights."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.stack([torch.randperm(count, generator=generator)[:2] for _ in range(tokens)])
    weights = torch.rand(tokens, 2, generator=generator)
    return chosen, weights / weights.sum(1, keepdim=True)


def test_statistics_are_sums_over_the_tokens_of_each_expert():
    module, x = experts(4), torch.randn(50, WIDTH)
    chosen, weights = routed(50, 4)
    with torch.no_grad():
        sums = gathered(module, lambda: module(x, chosen, weights), pairs=5)
        for number in range(4):
            token, rank = torch.where(chosen == number)
            out = module.run(module.experts[number], x[token])[1]
            assert sums.count[number] == len(token)
            assert float(sums.weight[number]) == pytest.approx(float(weights[token, rank].sum()), rel=1e-5)
            mean = (weights[token, rank] * out.norm(dim=1)).mean()
            assert float(sums.saliency[number]) == pytest.approx(float(mean), rel=1e-5)
    assert torch.equal(sums.compared, torch.full((4,), 5.0, dtype=torch.float64))
    torch.testing.assert_close(sums.likeness.diagonal(), sums.compared)
    assert torch.equal(REAP().scores(module, sums), sums.saliency)
    assert module.watch is None


def test_scores_by_norm_and_groups():
    module = experts(4)
    with torch.no_grad():
        module.experts[2].up_proj.weight *= 10
    assert largest(Norm().scores(module, None), 1) == [2]
    scores = torch.tensor([5.0, 6, 7, 8, 1, 2, 3, 4])
    assert largest(scores, 4) == [0, 1, 2, 3]
    assert largest(scores, 4, groups=2) == [2, 3, 6, 7]
    assert largest(scores, 4, groups=4) == [1, 3, 5, 7]


def test_an_expert_is_aligned_with_one_of_the_same_units_in_another_order():
    module = experts(2)
    target, other = module.experts
    order = torch.randperm(INNER, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        other.gate_proj.weight.copy_(target.gate_proj.weight[order])
        other.up_proj.weight.copy_(target.up_proj.weight[order])
        other.down_proj.weight.copy_(target.down_proj.weight[:, order])
    found = aligned(other, target)
    assert all(torch.equal(found[name], value) for name, value in target.named_parameters())


def test_merging_averages_an_expert_with_the_one_that_is_like_it():
    module, x = experts(3), torch.randn(60, WIDTH)
    with torch.no_grad():
        for name, value in module.experts[2].named_parameters():
            value.copy_(1.1 * dict(module.experts[0].named_parameters())[name])
        sums = gathered(module, lambda: module(x, *routed(60, 3)), pairs=20)
    method = Merge()
    assert method.groups([0, 1], sums) == [[0, 2], [1]]
    parts = method.merged(module, [0, 1], sums)
    assert {place for place, _ in parts} == {0}
    share = float(sums.activation[2] / (sums.activation[0] + sums.activation[2]))
    torch.testing.assert_close(
        parts[0, "up_proj.weight"], module.experts[0].up_proj.weight * (1 + 0.1 * share), rtol=1e-4, atol=1e-4
    )


def test_the_fit_restores_what_another_last_matrix_computed():
    before, after = experts(1), experts(1)
    with torch.no_grad():
        after.experts[0].down_proj.weight.zero_()
    x = torch.randn(200, WIDTH)
    given = torch.zeros(200, 1, dtype=torch.int64), torch.rand(200, 1) + 0.1

    def run(whole):
        return (before if whole else after)(x, *given)

    with torch.no_grad():
        new = fitted(before, after, lambda: iter([run]), damping=1e-7)
    wanted = before.experts[0].down_proj.weight
    torch.testing.assert_close(new[0, "down_proj.weight"], wanted, rtol=1e-2, atol=1e-2)
    difference = Difference()
    difference.add(torch.tensor([3.0, 4]), torch.tensor([3.0, 5]))
    assert difference.relative == pytest.approx(1 / 25)


def test_counts_of_a_configuration():
    counts = Counts("", ("num_experts",), "num_experts_per_tok", 8, 2, groups=2, chosen_groups=1)
    counts.check(4, 2)
    for kept, active, message in (
        (1, 2, "a token uses 2 experts, and 1 would be left"),
        (5, 2, "keep 4 of 8"),
        (2, 2, "do not divide"),
        (4, 3, "of 1 groups, which would have 2 each"),
    ):
        with pytest.raises(SqueezeError, match=message):
            counts.check(kept, active)
    config = {"num_experts": 8, "num_experts_per_tok": 2, "num_nextn_predict_layers": 1, "quantization_config": {}}
    assert cut_config(config, counts, 4, 1) == {
        "num_experts": 4,
        "num_experts_per_tok": 1,
        "num_nextn_predict_layers": 0,
    }
    inside = Counts("text_config", ("num_experts",), "num_experts_per_tok", 8, 2)
    cut = cut_config({"model_type": "a", "text_config": {"num_experts": 8}}, inside, 4, 2)
    assert cut == {"model_type": "a", "text_config": {"num_experts": 4, "num_experts_per_tok": 2}}
    assert Plan(counts, 4, 2).kept == 4


def test_methods_have_the_names_of_their_classes():
    assert sorted(METHODS) == sorted(kind.name for kind in (REAP, Merge, Norm))
    assert isinstance(experts(1).experts[0], Expert)
