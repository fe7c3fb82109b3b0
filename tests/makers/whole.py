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
            model.set_submodule(name, _apart(model.get_submodule(name), module))
    return model


def _apart(fused: nn.Module, like: Experts) -> Experts:
    """fused: a module of transformers with weights."""
    experts, layout = Experts(fused, like.layout), like.layout
    for name, parts in layout.parts.items():
        tensor = fused.get_parameter(name).detach()
        for expert, entry in zip(experts.experts, tensor, strict=True):
            for number, part in enumerate(parts):
                leaf, _, kind = part.partition(".")
                value = nn.Parameter(layout.taken(name, number, entry), requires_grad=False)
                setattr(expert.get_submodule(leaf), kind, value)
    return experts
