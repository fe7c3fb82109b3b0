"""Smoothing: inputs that are large are made smaller and their weights larger, so that a grid serves these better.

What a norm gives to a block's matrices is divided by s and their columns are multiplied by it. AWQ (Lin et al. 2023,
arXiv 2306.00978) searches s; here s = E[x^2]^(strength / 2), as SmoothQuant (Xiao et al. 2022, arXiv 2211.10438) has it
with largest values. The function stays, nothing more is stored, and nothing more has to be run.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from squeeze.checkpoint.architectures import NORM_BEFORE, architecture_of
from squeeze.checkpoint.checkpoint import Checkpoint

__all__ = ["SmoothedCheckpoint"]


@dataclass(frozen=True)
class SmoothedCheckpoint(Checkpoint):
    """A checkpoint whose norms and the matrices behind them are scaled as they are loaded. norms: by tensor, in its
    type [H]; factors: by tensor, of the columns of the matrices behind it, float32 [H]."""

    norms: dict[str, torch.Tensor] = field(default_factory=dict)
    factors: dict[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, checkpoint: Checkpoint, squares: dict[str, torch.Tensor], strength: float) -> "SmoothedCheckpoint":
        """squares: of the inputs of every matrix, as input_squares has them. Raises ModelError for architectures that
        are not of Llama's kind."""
        message = f"{checkpoint.folder}: architecture {{kind}} cannot be smoothed; {{known}} can"
        architecture_of(checkpoint.config, message, experts=False)
        norms, factors = {}, {}
        for module, square in squares.items():
            name = _norm_of(module)
            if name is None or name in norms:
                continue
            before = checkpoint.load([name])[name]
            root = square.clamp(min=1e-12).pow(strength / 2)
            norms[name] = (before.float() * root.log().mean().exp() / root).to(before.dtype)
            factors[name] = torch.where(norms[name] == 0, 1.0, before.float() / norms[name].float())
        return cls(checkpoint.folder, checkpoint.files, norms, factors)

    def load(
        self, names: Iterable[str], device: torch.device | str = "cpu", strict: bool = True
    ) -> dict[str, torch.Tensor]:
        return {name: self._smoothed(name, tensor) for name, tensor in super().load(names, device, strict).items()}

    def _smoothed(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name in self.norms:
            return self.norms[name].to(tensor.device)
        module, _, leaf = name.rpartition(".")
        norm = _norm_of(module)
        if norm not in self.factors or leaf != "weight":
            return tensor
        return (tensor.float() * self.factors[norm].to(tensor.device)).to(tensor.dtype)


def _norm_of(module: str) -> str | None:
    """The tensor of the norm whose output a module of a block sees, None for others."""
    block, leaf = ".".join(module.split(".")[:3]), ".".join(module.split(".")[3:])
    return f"{block}.{NORM_BEFORE[leaf]}.weight" if leaf in NORM_BEFORE else None
