"""Healing a factorised model: its factors and norms are trained to give the original's outputs (distil.py)."""

import time
from pathlib import Path

import torch
from torch import nn

from squeeze.errors import SqueezeError
from squeeze.factor.linear import FactorLinear
from squeeze.integrations.load_model import load_model
from squeeze.recipes.train.distil import Distillation, Healing, Training, rate_for, replace_tensors
from squeeze.system.stamps import digest, stamps
from squeeze.system.work import work_folder

__all__ = ["Healing", "heal"]

_STATE = "state.pt"
_RATE = 3e-4  # for each nat lost


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
    student = load_model(target, torch.float32, training.device)
    trained = _trainable(student)
    if not trained:
        raise SqueezeError(f"{target}: has no factors in floating point to heal")
    teacher = load_model(original, torch.float32, training.device)
    task = {"original": stamps(original), "target": stamps(target), "tokens": digest(tokens), "blocks": blocks}
    with work_folder(target, "healing", task | training.described(), training.resume or None) as work:
        rate = training.rate or rate_for(student, teacher, tokens, _RATE)
        batch, seed = training.batch, training.seed
        run = Distillation(student, teacher, trained, tokens, rate, batch, blocks, seed, work / _STATE)
        total, progress = training.steps or 0, training.progress
        tick = (lambda count: progress(f"healing, loss {run.losses[-1]:.4f}", run.step, total)) if progress else None
        run.go(60 * training.minutes, training.steps, tick)
        replace_tensors(target, work, student, trained)
    return Healing(run.step, tuple(run.losses), time.perf_counter() - started)


def _trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Factors, and the norms between them, which cost nothing to store anew."""
    trainable: dict[str, nn.Parameter] = {}
    for name, module in model.named_modules():
        if isinstance(module, FactorLinear):
            trainable |= {f"{name}.{leaf}": parameter for leaf, parameter in module.named_parameters()}
    if trainable:
        trainable |= {name: value for name, value in model.named_parameters() if "norm" in name and value.ndim == 1}
    return trainable
