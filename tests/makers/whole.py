"""A whole model in memory whose linear modules have the names that the pipeline gives them: what goes by block is
compared with it."""

import torch
from torch import nn

from squeeze.engine.experts import Experts
from squeeze.engine.network import Network
from squeeze.integrations.load_model import load_model


def whole(network: Network, device: str = "cpu") -> nn.Module:
    """The model of a network in float32, its experts taken apart as the network's are."""
    model = load_model(network.checkpoint.folder, torch.float32, device)
    for name, module in network.model.named_modules():
        if isinstance(module, Experts):
            model.set_submodule(name, Experts.filled(model.get_submodule(name), module.layout))
    return model
