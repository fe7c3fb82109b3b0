"""A whole model in memory whose linear modules have the names that the pipeline gives them."""

import torch
from torch import nn

from squeeze.engine.experts import Experts
from squeeze.engine.network import Network, is_linear, weight_of
from squeeze.engine.pipeline import plan as linear_modules
from squeeze.errors import ModelError
from squeeze.integrations.load_model import load_model

__all__ = ["linear_names", "weight", "whole"]


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


def linear_names(network: Network, model: nn.Module, ignore: tuple[str, ...] = ()) -> dict[str, list[str]]:
    """By block, the names in it of the linear modules to be compressed. Raises ModelError where the whole model has
    other modules than the network."""
    leaves_of = {block: linear_modules(network, block, ignore)[0] for block in network.blocks}
    known = {name for name, module in model.named_modules() if is_linear(module)}
    if missing := {f"{block}.{leaf}" for block, leaves in leaves_of.items() for leaf in leaves} - known:
        raise ModelError(f"{network.checkpoint.folder}: {min(missing)} is no linear layer of the whole model")
    return leaves_of


def weight(model: nn.Module, name: str) -> torch.Tensor:
    """[O, I] of a linear module."""
    return weight_of(model.get_submodule(name)).detach()
