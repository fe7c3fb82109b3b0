"""A whole model in memory whose linear modules have the pipeline's names, as a reference for block-by-block results."""

import torch
from torch import nn

from squeeze.engine.experts import Experts
from squeeze.engine.network import Network
from squeeze.integrations.load_model import load_model


def whole(network: Network, device: str = "cpu") -> nn.Module:
    """Return the model of a network in float32, with its experts split as the network's are."""
    model = load_model(network.checkpoint.folder, torch.float32, device)
    for name, module in network.model.named_modules():
        if isinstance(module, Experts):
            model.set_submodule(name, Experts.filled(model.get_submodule(name), module.layout))
    return model
