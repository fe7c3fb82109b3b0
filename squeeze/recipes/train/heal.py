"""Healing a factorised model: its factors and norms are trained to give the original's outputs (distil.py)."""

import time
from pathlib import Path

import torch
from torch import nn

from squeeze.engine.pipeline import Progress
from squeeze.errors import SqueezeError
from squeeze.factor.linear import FactorLinear
from squeeze.integrations.load_model import load_model
from squeeze.recipes.train.distil import Distillation, Healing, rate_for, replace_tensors
from squeeze.system.stamps import digest, stamps
from squeeze.system.work import work_folder

__all__ = ["Healing", "heal"]

_STATE = "state.pt"
_RATE = 3e-4  # for each nat lost


def heal(
    original: Path | str,
    target: Path | str,
    tokens: torch.Tensor,
    *,
    minutes: float,
    steps: int | None = None,
    rate: float | None = None,
    batch: int = 1,
    blocks: float = 0.0,
    seed: int = 0,
    resume: bool = False,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Healing:
    """Fine-tune a factorised folder in place, which is replaced when all is done.

    tokens: [N, L] sequences, in random order, as often as there is time. minutes: at most so long, the saving aside;
    steps: or so many steps. rate: the largest step size of Adam, None for one that suits the damage (distil.rate_for);
    it rises for a tenth of the time and falls to 0 with a cosine. batch: sequences a step. blocks: share of the time,
    or steps, in which the loss is that of each block by itself. A run that was stopped goes on; resume: it has to.
    Raises SqueezeError where that was of other settings, and where the folder has no factors in floating point.
    """
    original, target = Path(original), Path(target)
    started = time.perf_counter()
    student = load_model(target, torch.float32, device)
    trained = _trainable(student)
    if not trained:
        raise SqueezeError(f"{target}: has no factors in floating point to heal")
    teacher = load_model(original, torch.float32, device)
    task = {"original": stamps(original), "target": stamps(target), "tokens": digest(tokens), "rate": rate}
    task |= {"batch": batch, "seed": seed, "minutes": minutes, "steps": steps, "blocks": blocks}
    with work_folder(target, "healing", task, resume or None) as work:
        rate = rate or rate_for(student, teacher, tokens, _RATE)
        run = Distillation(student, teacher, trained, tokens, rate, batch, blocks, seed, work / _STATE)
        total = steps or 0
        run.go(60 * minutes, steps, (lambda count: progress("healing", run.step, total)) if progress else None)
        replace_tensors(target, work, student, trained)
    return Healing(run.step, tuple(run.losses), time.perf_counter() - started)


def _trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Factors, and the norms between them, which cost nothing to store anew."""
    found: dict[str, nn.Parameter] = {}
    for name, module in model.named_modules():
        if isinstance(module, FactorLinear):
            found |= {f"{name}.{leaf}": parameter for leaf, parameter in module.named_parameters()}
    if found:
        found |= {name: value for name, value in model.named_parameters() if "norm" in name and value.ndim == 1}
    return found
