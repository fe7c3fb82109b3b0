"""Training what an Opening opens of a folder: with both models in memory, or block by block."""

from collections.abc import Callable
from pathlib import Path

import torch

from squeeze.errors import SqueezeError
from squeeze.integrations.load_model import load_model
from squeeze.recipes.train.by_block import by_block
from squeeze.recipes.train.distil import STATE, Becomes, Distillation, Training, named
from squeeze.recipes.train.student import Opening, norms
from squeeze.recipes.train.trainer import Steps

__all__ = ["training_of"]


def training_of(
    original: Path,
    target: Path,
    opening: Opening,
    tokens: torch.Tensor,
    training: Training,
    work: Path,
    blocks: float = 0.0,
) -> tuple[Steps, Callable[[], Becomes]]:
    """Return a training of `target` to give what `original` does, and what the tensors of the checkpoint become.

    work: the folder of its files, from which a stopped run goes on. blocks: share of the time, or steps, in which every
    block learns by itself. Raises SqueezeError if there is nothing to train.
    """
    blocked = by_block(original, target, opening, tokens, training, work, blocks)
    return blocked or _in_memory(original, target, opening, tokens, training, work, blocks)


def _in_memory(
    original: Path,
    target: Path,
    opening: Opening,
    tokens: torch.Tensor,
    training: Training,
    work: Path,
    blocks: float,
) -> tuple[Steps, Callable[[], Becomes]]:
    """As `training_of`, with both models in memory."""
    student = load_model(target, torch.float32, training.device)
    trained = opening.open(student)
    if len(trained) == len(norms(student)):
        raise SqueezeError(f"{target}: {opening.lacks}")
    teacher = load_model(original, torch.float32, training.device)
    run = Distillation(student, teacher, trained, tokens, training, opening.rate, work / STATE, blocks)
    return run, lambda: named(student, opening.close(student), target)
