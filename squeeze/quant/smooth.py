"""Smoothing: large activations are made smaller and their weights larger, so that a grid fits the activations better.

The outputs of a norm or matrix are divided by s, and the columns of the matrices that read them multiplied by s. Behind
norms s = E[x^2]^(strength / 2); SmoothQuant (Xiao et al. 2022, arXiv 2211.10438) uses the largest values instead. AWQ
searches s (awq.py). The network's function stays; nothing more is stored or computed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from squeeze.checkpoint.architectures import NORM_BEFORE, architecture_of
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.errors import ModelError

__all__ = ["SmoothedCheckpoint", "can_be_smoothed", "divided"]


@dataclass(frozen=True)
class SmoothedCheckpoint(Checkpoint):
    """A checkpoint whose norms and matrices are scaled as they are loaded.

    Attributes:
        norms: scaled weights of norms by tensor name, in their dtype [H].
        factors: factors of the columns of the matrices after a norm, by the norm's tensor name, float32 [H].
        rows: divisors of the outputs of a matrix by module, float32 [O].
        columns: factors of the columns of a matrix that is not after a norm, by module [I].
    """

    norms: dict[str, torch.Tensor] = field(default_factory=dict)
    factors: dict[str, torch.Tensor] = field(default_factory=dict)
    rows: dict[str, torch.Tensor] = field(default_factory=dict)
    columns: dict[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, checkpoint: Checkpoint, squares: dict[str, torch.Tensor], strength: float) -> "SmoothedCheckpoint":
        """Smooth a checkpoint by the mean squares of its inputs.

        Args:
            checkpoint: the original.
            squares: mean squares of the inputs of every matrix, from input_squares.
            strength: share of the magnitude that goes to the weights, 0 to 1.

        Raises:
            ModelError: the architecture does not have Llama's names.
        """
        _check(checkpoint)
        norms, factors = {}, {}
        for module, square in squares.items():
            name = _norm_of(module)
            if name is None or name in norms:
                continue
            root = square.clamp(min=1e-12).pow(strength / 2)
            norms[name], factors[name] = divided(checkpoint.load([name])[name], root / root.log().mean().exp())
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
        columns = self.factors.get(norm) if norm in self.factors else self.columns.get(module)
        values = tensor
        if columns is not None and leaf == "weight":
            values = values.float() * columns.to(tensor.device)
        if module in self.rows and leaf in ("weight", "bias"):
            rows = self.rows[module].to(tensor.device)
            values = values.float() / (rows[:, None] if values.ndim > 1 else rows)
        return values.to(tensor.dtype)


def can_be_smoothed(checkpoint: Checkpoint) -> bool:
    """Return whether the architecture of a checkpoint can be smoothed."""
    try:
        _check(checkpoint)
    except ModelError:
        return False
    return True


def _check(checkpoint: Checkpoint) -> None:
    message = f"{checkpoint.folder}: architecture {{kind}} cannot be smoothed; {{known}} can"
    architecture_of(checkpoint.config, message, experts=False)


def divided(norm: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a norm's weight [H] divided by scales, in its dtype, and the float32 factors that undo that exactly."""
    rounded = (norm.float() / scales).to(norm.dtype)
    return rounded, torch.where(rounded == 0, 1.0, norm.float() / rounded.float())


def _norm_of(module: str) -> str | None:
    """Return the tensor name of the norm before a module of a block; None if there is no norm before it."""
    block, leaf = ".".join(module.split(".")[:3]), ".".join(module.split(".")[3:])
    return f"{block}.{NORM_BEFORE[leaf]}.weight" if leaf in NORM_BEFORE else None
