"""Distillation: part of a model is trained to give the original's outputs, without labels.

All parameters learn the original's next-token distribution (Hinton et al. 2015, arXiv 1503.02531). For a share of the
time each block first learns the output of the original's block for the same inputs (as in OmniQuant, Shao et al. 2023,
arXiv 2308.13137). trainer.py has the steps.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint, Parts
from squeeze.checkpoint.other_files import copy_other_files
from squeeze.checkpoint.renaming import renamed
from squeeze.engine.network import find_blocks
from squeeze.engine.pipeline import Progress
from squeeze.errors import OptionError, SqueezeError
from squeeze.options import MOST_MINUTES
from squeeze.packing import folder
from squeeze.recipes.train.trainer import Loss, Trainer, halve_fixed
from squeeze.system.documents import read_object

__all__ = [
    "RATE_SEQUENCES",
    "STATE",
    "Becomes",
    "Distillation",
    "Healing",
    "Training",
    "divergence",
    "divergence_of",
    "error_of",
    "is_trained",
    "named",
    "rate_for",
    "rate_of",
    "replace_tensors",
]

RATE_SEQUENCES = 4
STATE = "state.pt"  # of a training in memory, in its folder
_ROWS = 16  # of logits
Becomes = Callable[[str], torch.Tensor | None]  # of a checkpoint's tensor by its name; None where it stays


@dataclass(frozen=True)
class Healing:
    """Result of a training: steps, seconds, and the loss of every step (KL divergence, or squared error of blocks)."""

    steps: int
    losses: tuple[float, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Training:
    """Duration and settings of a training.

    It ends after `minutes`, without the saving, or after `steps`. `rate` is Adam's largest step size; None chooses one
    by the damage (rate_for). The rate rises for a tenth of the time and falls to 0 by a cosine. `batch` counts the
    sequences of a step. `resume` requires that a stopped run exists; one that exists is always continued.
    """

    minutes: float
    steps: int | None = None
    rate: float | None = None
    batch: int = 1
    seed: int = 0
    resume: bool = False
    device: str = "cpu"
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.minutes <= MOST_MINUTES:
            raise OptionError(f"expected minutes from 0 to {MOST_MINUTES} (a year), got {self.minutes:g}")

    def described(self) -> dict[str, Any]:
        """Return the settings that a stopped run must share; its duration may grow."""
        return {name: getattr(self, name) for name in ("rate", "batch", "seed")}


class Distillation(Trainer):
    """A trainer of a student on the outputs of a teacher, both in memory.

    `blocks` is the share of time or steps in which each block has a loss of its own.
    """

    def __init__(
        self,
        student: nn.Module,
        teacher: nn.Module,
        trained: dict[str, nn.Parameter],
        tokens: torch.Tensor,
        training: Training,
        factor: float,
        state: Path,
        blocks: float = 0.0,
    ) -> None:
        """Prepare a training.

        Args:
            student: The model to train.
            teacher: The original.
            trained: Parameters to train by name.
            tokens: int64 [N, L], sequences.
            training: Its settings.
            factor: Argument of `rate_for`, if the settings have no rate.
            state: File from which a stopped run continues.
            blocks: Share of time or steps with a loss for each block.
        """
        rate = training.rate or rate_for(student, teacher, tokens, factor)
        self.student, self.teacher, self.blocks = student, teacher, blocks
        for model in (student, teacher):
            model.requires_grad_(False)
        for parameter in trained.values():
            parameter.requires_grad_(True)
        super().__init__(trained, tokens, rate, training.batch, training.seed, state)
        if self.halves:
            for model in (student, teacher):
                halve_fixed(model)

    def loss_at(self, share: float) -> Loss:
        return self._by_block if share < self.blocks else self._divergence

    def _divergence(self, ids: torch.Tensor) -> torch.Tensor:
        return divergence(self.student, self.teacher, ids)

    def _by_block(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the mean of error_of over blocks, each on the teacher's inputs, without gradients between blocks."""
        calls: list[tuple[torch.Tensor, torch.Tensor, tuple[Any, ...], dict[str, Any]]] = []

        def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
            calls.append((args[0], out[0] if isinstance(out, tuple) else out, args[1:], kwargs))

        names = find_blocks(self.teacher)
        hooks = [self.teacher.get_submodule(name).register_forward_hook(note, with_kwargs=True) for name in names]
        try:
            with torch.no_grad():
                self.teacher(ids, use_cache=False, logits_to_keep=1)
        finally:
            for hook in hooks:
                hook.remove()
        losses = []
        for name, (x, expected, args, kwargs) in zip(names, calls, strict=True):
            out = self.student.get_submodule(name)(x, *args, **kwargs)
            losses.append(error_of(out[0] if isinstance(out, tuple) else out, expected, x))
        return torch.stack(losses).mean()


def error_of(student: torch.Tensor, teacher: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return |y' - y|^2 / |y - x|^2 for input x, the teacher's output y and the student's output y'."""
    error, size = (student.float() - teacher).square().sum(), (teacher.float() - x).square().sum()
    return error / size.clamp(min=1e-12)


def divergence(student: nn.Module, teacher: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Return KL(teacher || student) on a sequence [1, L], in nats a token."""
    with torch.no_grad():
        wanted = teacher(ids, use_cache=False).logits[0]
    return divergence_of(student(ids, use_cache=False).logits[0], wanted)


def divergence_of(logits: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Return the mean of KL(softmax(wanted) || softmax(logits)) over rows, in nats; both are [L, V]."""
    return _Divergence.apply(logits, expected)  # type: ignore[no-any-return, no-untyped-call]


class _Divergence(torch.autograd.Function):
    """The mean of KL(softmax(wanted) || softmax(logits)) over rows [L, V], some rows at a time.

    That keeps temporaries in the cache, and stores only the gradient, softmax(logits) - softmax(wanted).
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        gradient, total = torch.empty_like(logits), torch.zeros((), device=logits.device)
        for first in range(0, len(logits), _ROWS):
            rows = slice(first, first + _ROWS)
            f, w = logits[rows].float(), wanted[rows].float()
            q, p = torch.softmax(f, -1), torch.softmax(w, -1)
            total += (p * (w - f)).sum() + _log_partition(f, q) - _log_partition(w, p)
            gradient[rows] = q.sub_(p)
        ctx.save_for_backward(gradient.div_(len(logits)))
        return total / len(logits)

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * slopes[0].to(gradient.dtype), None


def _log_partition(logits: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
    """Return the sum over rows of log sum exp(logits), from logits and their softmax."""
    return (logits.amax(-1) - probabilities.amax(-1).log()).sum()


@torch.no_grad()
def rate_for(student: nn.Module, teacher: nn.Module, tokens: torch.Tensor, factor: float) -> float:
    """Return a rate of Adam in proportion to the divergence on the first sequences.

    Each step moves every parameter by about the rate, and a large rate costs a little damaged model more than it
    learns.

    Args:
        student: The model to train.
        teacher: The original.
        tokens: int64 [N, L], sequences.
        factor: Rate for each nat of divergence.
    """
    few = tokens[:RATE_SEQUENCES].to(next(student.parameters()).device)
    lost = [float(divergence(student, teacher, ids)) for ids in torch.split(few, 1)]
    return rate_of(lost, factor)


def rate_of(lost: Sequence[float], factor: float) -> float:
    """Return the rate for divergences of sequences, of which rounding may make the smallest negative."""
    return factor * min(max(sum(lost) / len(lost), 0.0), 1.0)


def named(student: nn.Module, trained: Mapping[str, torch.Tensor], target: Path) -> Becomes:
    """Return a function of what a checkpoint's tensor becomes, from trained tensors by the model's names."""
    places, prefix = renamed(student, Checkpoint.open(target).files), f"{getattr(student, 'base_model_prefix', '')}."
    either = {**{name.removeprefix(prefix): value for name, value in trained.items()}, **trained}
    return lambda name: either.get(places[name].target)


def replace_tensors(target: Path, work: Path, value: Becomes) -> None:
    """Replace tensors of a folder by trained ones in their stored dtypes, in one step."""
    checkpoint, parts, content = Checkpoint.open(target), Parts(work), work / folder.CONTENT
    shutil.rmtree(content, ignore_errors=True)
    content.mkdir()
    replaced = 0
    for number, name in enumerate(checkpoint.files):
        tensor = checkpoint.load([name], strict=False)[name]
        if (new := value(name)) is not None:
            replaced += 1
            tensor = new.detach().to("cpu", tensor.dtype)
        parts.put(str(number), {name: tensor})
    if not replaced:
        raise SqueezeError(f"{target}: none of its tensors was trained")
    parts.join(map(str, range(len(checkpoint.files))), content)
    copy_other_files(target, content)
    _note(content)
    folder.move_into_place(content, target, overwrite=True)


def is_trained(target: Path) -> bool:
    """Return whether replace_tensors has changed a folder."""
    return bool((Checkpoint.open(target).config.get("quantization_config") or {}).get("healed"))


def _note(content: Path) -> None:
    config = read_object(content / "config.json")
    config["quantization_config"]["healed"] = True
    (content / "config.json").write_text(json.dumps(config, indent=2) + "\n")
