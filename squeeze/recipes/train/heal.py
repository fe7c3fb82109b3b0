"""Healing a factorised model: its factors and norms are trained to give the original's outputs (distil.py)."""

import time
from pathlib import Path

import torch
from torch import nn

from squeeze.factor.stored import FactorizedForm, FactorLinear
from squeeze.recipes.train.distil import Healing, Training, replace_tensors
from squeeze.recipes.train.opened import training_of
from squeeze.recipes.train.student import Opening, norms
from squeeze.system.unchanged import digest, stamps
from squeeze.system.work import discards, work_folder

__all__ = ["Healing", "heal"]

_RATE = 3e-4  # for each nat lost
_BYTES = 16.0  # of memory for each weight of the original, where half of them stay


def heal(
    original: Path | str, target: Path | str, tokens: torch.Tensor, training: Training, blocks: float = 0.0
) -> Healing:
    """Fine-tune a factorised folder in place, which is replaced when all is done.

    tokens: [N, L] sequences, in random order, as often as there is time. blocks: share of the time, or steps, in which
    the loss is that of each block by itself. Raises SqueezeError where a run that was stopped was of other settings,
    and where the folder has no factors in floating point.
    """
    original, target = Path(original), Path(target)
    started = time.perf_counter()
    task = {"original": stamps(original), "target": stamps(target), "tokens": digest(tokens), "blocks": blocks}
    with work_folder(target, "healing", task | training.described(), discards(training.resume, overwrite=True)) as work:
        run, stored = training_of(original, target, _OPENING, tokens, training, work, blocks)
        total, progress = training.steps or 0, training.progress
        tick = (lambda count: progress(f"healing, loss {run.losses[-1]:.4f}", run.step, total)) if progress else None
        run.go(60 * training.minutes, training.steps, tick)
        replace_tensors(target, work, stored())
    return Healing(run.step, tuple(run.losses), time.perf_counter() - started)


def _trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Factors, and the norms between them, which cost nothing to store anew."""
    trainable: dict[str, nn.Parameter] = {}
    for name, module in model.named_modules():
        if isinstance(module, FactorLinear):
            trainable |= {f"{name}.{leaf}": parameter for leaf, parameter in module.named_parameters()}
    return trainable | norms(model)


_OPENING = Opening(FactorizedForm(), _trainable, _trainable, "has no factors in floating point to heal", _RATE, _BYTES)
