"""The second-order rise of a model's loss when a matrix changes: moments of inputs and of output gradients.

A change D of a matrix [O, I] raises the mean KL divergence from the original by about tr(G D H D^T) / 2 nats a token.
That is K-FAC (Martens and Grosse 2015, arXiv 1503.05671). H = E[x x^T] is over inputs x. G = E[g g^T] is over gradients
g of the loss with respect to outputs, for labels drawn from the model's own predictions.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from squeeze.engine.gradients import backward
from squeeze.engine.network import Network

__all__ = ["Curvature", "curvature", "damage", "on_disk"]


@dataclass
class Curvature:
    """The moments of one matrix.

    Attributes:
        inputs: H, float32 [I, I], over the inputs seen; shared by matrices with the same inputs.
        outputs: G, float32 [O, O], over all tokens, so that it is small for an expert that few tokens reach.
        tokens: number of inputs seen.
    """

    inputs: torch.Tensor
    outputs: torch.Tensor
    tokens: int = 0


def damage(change: torch.Tensor, curvature: Curvature) -> float:
    """Return the predicted rise of the loss, in nats a token, for a change [O, I]."""
    change = change.float()
    return 0.5 * float(((curvature.outputs @ change) * (change @ curvature.inputs)).sum())


def curvature(
    network: Network,
    tokens: torch.Tensor,
    leaves: Mapping[str, Sequence[str]],
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Curvature]:
    """Compute the moments of each linear module that tokens reach, by its name.

    One block is in memory, with 4 (I^2 + O^2) bytes for each of its matrices. The results are in files.

    Args:
        network: the network.
        tokens: sequences [N, L].
        leaves: names of linear modules in each block, by block.
        seed: of the drawn labels.
        progress: called with the number of further blocks that are done.
    """
    generator = torch.Generator().manual_seed(seed)

    def loss(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        chances = torch.softmax(logits.detach().float().cpu(), -1)
        labels = torch.multinomial(chances, 1, generator=generator)[:, 0].to(logits.device)
        return nn.functional.cross_entropy(logits.float(), labels, reduction="sum")

    found: dict[str, Curvature] = {}
    for name, block, run in backward(network, tokens, loss):
        collector = _Collector(block, leaves.get(name, ()))
        try:
            run()
        finally:
            collector.remove()
        found |= {f"{name}.{leaf}": one for leaf, one in collector.result(tokens.numel()).items()}
        if progress:
            progress(1)
    return found


class _Collector:
    """Hooks that sum moments; modules called with the same tensor share those of their inputs."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        self.inputs: dict[str, torch.Tensor] = {}
        self.outputs: dict[str, torch.Tensor] = {}
        self.counts: dict[str, int] = {}  # of inputs
        self.owner: dict[str, str] = {}  # whose inputs a module shares
        self._last: tuple[str, Any] = "", None
        self._hooks = [model.get_submodule(name).register_forward_hook(self._hook(name)) for name in names]

    def _hook(self, name: str) -> Callable[..., None]:
        def observe(module: nn.Module, args: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
            if args[0] is not self._last[1]:
                self._last = name, args[0]
                x = args[0].detach().reshape(-1, args[0].shape[-1]).float()
                _add(self.inputs, name, x)
                self.counts[name] = self.counts.get(name, 0) + len(x)
            self.owner[name] = self._last[0]
            if out.requires_grad:
                out.register_hook(  # type: ignore[no-untyped-call]
                    lambda gradient: _add(self.outputs, name, gradient.reshape(-1, gradient.shape[-1]).float())
                )

        return observe

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._last = "", None  # its graph has hooks that hold this collector, a circle that is never freed

    def result(self, tokens: int) -> dict[str, Curvature]:
        for name, moments in self.inputs.items():
            moments.div_(self.counts[name])
        for moments in self.outputs.values():
            moments.div_(tokens)
        inputs, outputs = on_disk(self.inputs), on_disk(self.outputs)
        return {
            name: Curvature(inputs[owner], outputs[name], self.counts[owner])
            for name, owner in self.owner.items()
            if name in outputs
        }


def _add(moments: dict[str, torch.Tensor], name: str, rows: torch.Tensor) -> None:
    if name not in moments:
        moments[name] = torch.zeros((rows.shape[1], rows.shape[1]), device=rows.device)
    moments[name].addmm_(rows.T, rows)


def on_disk(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors on the CPU, mapped from an unnamed temporary file that is deleted with the last of them."""
    with tempfile.NamedTemporaryFile() as file:
        torch.save({name: tensor.detach().cpu() for name, tensor in tensors.items()}, file)
        file.flush()
        mapped: dict[str, torch.Tensor] = torch.load(file.name, mmap=True, weights_only=True)
    return mapped
