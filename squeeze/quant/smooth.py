"""Smoothing: inputs that are large are made smaller and their weights larger, so that a grid serves these better.

What a norm or a matrix gives to the matrices behind it is divided by s and their columns are multiplied by it. Here
s = E[x^2]^(strength / 2) behind norms, as SmoothQuant (Xiao et al. 2022, arXiv 2211.10438) has it with largest values;
scaling.py searches s. The function stays, nothing more is stored, and nothing more has to be run.
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
    """A checkpoint whose norms and matrices are scaled as they are loaded. norms: by tensor, in its type [H]; factors:
    by tensor, of the columns of the matrices behind it, float32 [H]. rows, columns: by module, what the outputs of a
    matrix are divided by, float32 [O], and what the columns of one that no norm is before are multiplied by [I]."""

    norms: dict[str, torch.Tensor] = field(default_factory=dict)
    factors: dict[str, torch.Tensor] = field(default_factory=dict)
    rows: dict[str, torch.Tensor] = field(default_factory=dict)
    columns: dict[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, checkpoint: Checkpoint, squares: dict[str, torch.Tensor], strength: float) -> "SmoothedCheckpoint":
        """squares: of the inputs of every matrix, as input_squares has them. Raises ModelError for architectures that
        are not of Llama's kind."""
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
    try:
        _check(checkpoint)
    except ModelError:
        return False
    return True


def _check(checkpoint: Checkpoint) -> None:
    message = f"{checkpoint.folder}: architecture {{kind}} cannot be smoothed; {{known}} can"
    architecture_of(checkpoint.config, message, experts=False)


def divided(norm: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A norm's weight [H] divided by scales as its type holds it, and the float32 factors that undo that exactly."""
    rounded = (norm.float() / scales).to(norm.dtype)
    return rounded, torch.where(rounded == 0, 1.0, norm.float() / rounded.float())


def _norm_of(module: str) -> str | None:
    """The tensor of the norm whose output a module of a block sees, None for others."""
    block, leaf = ".".join(module.split(".")[:3]), ".".join(module.split(".")[3:])
    return f"{block}.{NORM_BEFORE[leaf]}.weight" if leaf in NORM_BEFORE else None
