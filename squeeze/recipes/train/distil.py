"""Trains part of a model to give the original's outputs, without labels.

All parameters at once learn the original's distribution of the next token (distillation, Hinton et al. 2015, arXiv
1503.02531); for a share of the time each block first learns by itself what the original's block makes of the same
inputs (as OmniQuant, Shao et al. 2023, arXiv 2308.13137, trains). The steps are those of trainer.py.
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
    """What a training did. losses: the mean KL divergence (or squared error of blocks) of every step; seconds: all."""

    steps: int
    losses: tuple[float, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Training:
    """How long, and how, something is trained.

    minutes: at most so long, the saving aside; steps: or so many steps. rate: the largest step size of Adam, None for
    one that suits the damage (rate_for); it rises for a tenth of the time and falls to 0 with a cosine. batch:
    sequences a step. A run that was stopped goes on; resume: it has to.
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
            raise OptionError(f"minutes {self.minutes:g}: they are from 0 to {MOST_MINUTES}, which is a year")

    def described(self) -> dict[str, Any]:
        """What a stopped run has to agree in: it may go on for longer than it should have at first."""
        return {name: getattr(self, name) for name in ("rate", "batch", "seed")}


class Distillation(Trainer):
    """Trains parameters of a student to give a teacher's outputs. blocks: share of the time, or steps, in which every
    block learns by itself."""

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
        """factor: of `rate_for`, where the training has no rate. state: the file from which a stopped run goes on."""
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
        """The mean over blocks of error_of, each given what the original's is. No gradient passes from block to
        block."""
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
        for name, (x, wanted, args, kwargs) in zip(names, calls, strict=True):
            out = self.student.get_submodule(name)(x, *args, **kwargs)
            losses.append(error_of(out[0] if isinstance(out, tuple) else out, wanted, x))
        return torch.stack(losses).mean()


def error_of(ours: torch.Tensor, wanted: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """|y' - y|^2 / |y - x|^2: y is what the original's block makes of its input x, y' what the student's does."""
    error, size = (ours.float() - wanted).square().sum(), (wanted.float() - x).square().sum()
    return error / size.clamp(min=1e-12)


def divergence(student: nn.Module, teacher: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """KL(teacher || student) on a sequence [1, L], nats a token."""
    with torch.no_grad():
        wanted = teacher(ids, use_cache=False).logits[0]
    return divergence_of(student(ids, use_cache=False).logits[0], wanted)


def divergence_of(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """KL(softmax(wanted) || softmax(logits)), both [L, V], the mean over rows in nats."""
    return _Divergence.apply(logits, wanted)  # type: ignore[no-any-return, no-untyped-call]


class _Divergence(torch.autograd.Function):
    """The mean over rows of KL(softmax(wanted) || softmax(logits)), both [L, V], a few rows at a time: what they take
    stays near the processor, and the gradient, softmax(logits) - softmax(wanted), is all that is kept."""

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
    """The sum over rows of log sum exp(logits), from their softmax."""
    return (logits.amax(-1) - probabilities.amax(-1).log()).sum()


@torch.no_grad()
def rate_for(student: nn.Module, teacher: nn.Module, tokens: torch.Tensor, factor: float) -> float:
    """A rate of Adam that suits the damage: so much a nat of divergence on the first sequences. Every step moves every
    parameter by about the rate, which costs a model that has lost little more than it can learn."""
    few = tokens[:RATE_SEQUENCES].to(next(student.parameters()).device)
    lost = [float(divergence(student, teacher, ids)) for ids in torch.split(few, 1)]
    return rate_of(lost, factor)


def rate_of(lost: Sequence[float], factor: float) -> float:
    """The rate for what sequences have lost, each. Where that is nothing, rounding may make it less."""
    return factor * min(max(sum(lost) / len(lost), 0.0), 1.0)


def named(student: nn.Module, trained: Mapping[str, torch.Tensor], target: Path) -> Becomes:
    """Trained tensors, by the model's names, as what the tensors of the checkpoint `target` become."""
    places, prefix = renamed(student, Checkpoint.open(target).files), f"{getattr(student, 'base_model_prefix', '')}."
    either = {**{name.removeprefix(prefix): value for name, value in trained.items()}, **trained}
    return lambda name: either.get(places[name].target)


def replace_tensors(target: Path, work: Path, value: Becomes) -> None:
    """Put trained tensors into the folder `target`, in their stored types, in one step."""
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
        raise SqueezeError(f"{target}: none of its tensors is one of those that were trained")
    parts.join(map(str, range(len(checkpoint.files))), content)
    copy_other_files(target, content)
    _note(content)
    folder.move_into_place(content, target, overwrite=True)


def is_trained(target: Path) -> bool:
    """Whether replace_tensors has been at a folder."""
    return bool((Checkpoint.open(target).config.get("quantization_config") or {}).get("healed"))


def _note(content: Path) -> None:
    config = read_object(content / "config.json")
    config["quantization_config"]["healed"] = True
    (content / "config.json").write_text(json.dumps(config, indent=2) + "\n")
