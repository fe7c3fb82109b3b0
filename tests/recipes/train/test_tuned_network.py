"""The network in torch computes what the package's does, and what was trained is what is stored."""

import numpy as np
import torch

from squeeze.codecs.recurrent import change, weights
from squeeze.recipes.train.tuned_network import TunedNetwork
from tests.references import recurrent_network

TEXT = np.frombuffer(b"def f(x):\n    return x + 1  # words, and more\n", np.uint8)


def test_the_change_is_what_was_trained():
    torch.manual_seed(0)
    tensors = weights.pretrained_tensors()
    net = TunedNetwork(tensors)
    assert not any(added.any() for added in net.change().values())
    with torch.no_grad():
        for parameter in net.trained.values():
            parameter.normal_(std=0.3)
        logits, _ = net(torch.from_numpy(TEXT.astype(np.int64))[None], net.start(1), net.weights())
    after = change.changed(tensors, net.change())
    expected = recurrent_network.log_probabilities(after, TEXT)
    assert np.abs(expected - torch.log_softmax(logits[0].double(), -1).numpy()).max() < 1e-3
    assert all(added.any() for added in net.change().values())


def test_all_that_changes_has_a_gradient():
    net = TunedNetwork(weights.pretrained_tensors())
    logits, _ = net(torch.from_numpy(TEXT.astype(np.int64))[None], net.start(1), net.weights())
    logits.square().mean().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in net.trained.values())
