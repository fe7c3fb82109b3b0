"""Curvature predicts what a change costs."""

import pytest
import torch

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.network import Network
from squeeze.factor.curvature import curvature, damage
from tests.makers import networks
from tests.makers.draws import Draws

draws = Draws(5)
matrix, moments = draws.matrix, draws.moments


def test_curvature_predicts_what_a_change_costs(tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed")
    model = networks.peaked_llama(2)
    model.save_pretrained(tmp_path)
    network = Network(Checkpoint.open(tmp_path))
    tokens = torch.randint(0, 64, (16, 32), generator=draws.generator)
    names = networks.linear_names(model)
    leaves = {block: [n.removeprefix(f"{block}.") for n in names if n.startswith(block)] for block in network.blocks}
    seen = curvature(network, tokens, leaves)
    assert seen[names[0]].inputs is seen[names[1]].inputs
    with torch.no_grad():
        wanted = torch.log_softmax(model(tokens).logits, -1)
    predicted, measured = [], []
    for name in names:
        weight = model.get_submodule(name).weight
        before = weight.data.clone()
        weight.data += 0.03 * matrix(*weight.shape)
        with torch.no_grad():
            found = torch.log_softmax(model(tokens).logits, -1)
        predicted.append(damage(weight.data - before, seen[name]))
        measured.append(float((wanted.exp() * (wanted - found)).sum(-1).mean()))
        weight.data = before
    ratios = torch.tensor(predicted) / torch.tensor(measured)
    assert ratios.min() > 0.2 and 0.7 < ratios.median() < 1.3 and ratios.max() < 3
