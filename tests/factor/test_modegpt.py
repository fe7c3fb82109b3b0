"""MoDeGPT's pairs: what goes, and what makes up for it."""

import pytest
import torch

from squeeze.factor import modegpt as decomposition
from squeeze.factor.curvature import Curvature
from tests.makers.draws import Draws

draws = Draws(5)
matrix, moments = draws.matrix, draws.moments


def pair():
    gate, up, down = matrix(24, 16), matrix(24, 16), matrix(16, 24)
    x = matrix(200, 16) * torch.logspace(0, -1, 16)
    inner = torch.nn.functional.silu(x @ gate.T) * (x @ up.T)
    return {"gate": gate, "up": up, "down": down}, x, inner


def test_channels_make_up_for_those_that_go():
    matrices, x, inner = pair()
    seen = Curvature(inner.T @ inner / len(inner), torch.eye(16), len(inner))
    path = decomposition.channels(matrices["down"], seen, 6, group=1)
    out = decomposition.without_channels(matrices, seen, path.order)
    changed = torch.nn.functional.silu(x @ out["gate"].T) * (x @ out["up"].T) @ out["down"].T
    error = (changed - inner @ matrices["down"].T).square().sum(1).mean() / 2
    assert float(error) == pytest.approx(float(path.costs[-1]), rel=0.02)
    scores = decomposition.leverage(seen.inputs).argsort()
    other = decomposition.channels(matrices["down"], seen, 6, scores, group=1)
    assert path.costs[-1] <= other.costs[-1]
    sliced = decomposition.RowColumnPruning().compress(out["down"]).tensor
    assert sliced.core.shape == (16, 18) and torch.equal(sliced.dequantize(), out["down"])


def test_values_of_a_head_are_taken_apart():
    v, o = matrix(16, 24), matrix(24, 32)  # two key heads, two queries each
    seen = Curvature(moments(24), moments(16), 100)
    heads = decomposition.values(v, o, seen, 8)
    bias = matrix(16, 1)[:, 0]
    same_v, same_o, same_bias = decomposition.with_values(v, o, heads, [8, 8], bias)

    def products(v, o):
        return torch.einsum("ohqs,hsi->hqoi", o.view(24, 2, 2, 8), v.view(2, 8, 24))

    assert torch.allclose(products(same_v, same_o), products(v, o), atol=1e-3)
    repeated = [one.view(2, 1, 8).expand(2, 2, 8).reshape(32) for one in (same_bias, bias)]
    assert torch.allclose(same_o @ repeated[0], o @ repeated[1], atol=1e-3)
    less_v, less_o, _ = decomposition.with_values(v, o, heads, [5, 8])
    assert (less_v == 0).all(1).sum() == 3 and (less_o == 0).all(0).sum() == 6
    assert torch.allclose(products(less_v, less_o)[1], products(v, o)[1], atol=1e-3)


def test_rotary_pairs_go_from_queries_and_keys_alike():
    q, k = matrix(32, 24), matrix(16, 24)
    k[3] = k[7] = 0  # the pair 3 of the first head, whose loss costs nothing
    units, path = decomposition.rotary_pairs(
        q, k, Curvature(moments(24), moments(32), 9), Curvature(moments(24), moments(16), 9), 8
    )
    assert units[0].tolist() == [0, 3] and path.costs[1] == 0 and len(path.costs) == 9
    new_q, new_k = decomposition.without_pairs(q, k, units[:2], 8)
    assert (new_k == 0).all(1).sum() == 4 and (new_q == 0).all(1).sum() == 8
