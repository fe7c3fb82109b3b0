"""Distillation: part of a model is trained to give the original's outputs, without labels.

All parameters learn the original's next-token distribution (Hinton et al. 2015, arXiv 1503.02531). For a share of the
time each block first learns the output of the original's block for the same inputs (as in OmniQuant, Shao et al. 2023,
arXiv 2308.13137). trainer.py has the steps.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.other_files import copy_other_files
from squeeze.checkpoint.parts import Parts
from squeeze.checkpoint.renaming import renamed
from squeeze.engine.network import find_blocks
from squeeze.engine.pipeline import Progress
from squeeze.errors import OptionError, SqueezeError
from squeeze.integrations.opening import check_opens
from squeeze.options import MOST_MINUTES
from squeeze.packing import folder
from squeeze.recipes.train.losses import agreement_of, divergence, error_of
from squeeze.recipes.train.trainer import Loss, Trainer, halve_fixed
from squeeze.system.documents import read_object

__all__ = [
    "RATE_SEQUENCES",
    "STATE",
    "Becomes",
    "Distillation",
    "Healing",
    "Training",
    "is_trained",
    "named",
    "rate_for",
    "rate_of",
    "replace_tensors",
]

RATE_SEQUENCES = 4
STATE = "state.pt"  # of a training in memory, in its folder
Becomes = Callable[[str], torch.Tensor | None]  # of a checkpoint's tensor by its name; None where it stays


@dataclass(frozen=True)
class Healing:
    """Result of a training: steps, seconds, and the loss of every step (KL divergence, or squared error of blocks).

    `before` and `after` are the divergences on held-out sequences, in nats a token; None without any.
    """

    steps: int
    losses: tuple[float, ...]
    seconds: float
    before: float | None = None
    after: float | None = None


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

    def lost(self, tokens: torch.Tensor) -> list[float]:
        """Return the divergence on each of some sequences, in nats a token."""
        with torch.no_grad(), self.cast:
            return [float(self._divergence(ids)) for ids in torch.split(tokens.to(self.device), 1)]

    def agreements(self, ids: torch.Tensor) -> list[float]:
        """Return the agreement of each block with the teacher's on a sequence [1, L] (agreement_of)."""
        with torch.no_grad(), self.cast:
            return [agreement_of(*outputs) for outputs in self._outputs(ids)]

    def _by_block(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the mean of error_of over blocks, each on the teacher's inputs, without gradients between blocks."""
        return torch.stack([error_of(*outputs) for outputs in self._outputs(ids)]).mean()

    def _outputs(self, ids: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Yield the output of each of the student's blocks, that of the teacher's, and their input."""
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
        for name, (x, expected, args, kwargs) in zip(names, calls, strict=True):
            out = self.student.get_submodule(name)(x, *args, **kwargs)
            yield out[0] if isinstance(out, tuple) else out, expected, x


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


def named(
    student: nn.Module, trained: Mapping[str, torch.Tensor], target: Path, modules: Mapping[str, str] | None = None
) -> Becomes:
    """Return a function of what a checkpoint's tensor becomes, from trained tensors by the model's names.

    Args:
        student: The model.
        trained: Trained tensors.
        target: The checkpoint.
        modules: The model's names of modules whose stored tensors are not the model's, by the checkpoint's names.
    """
    places, prefix = renamed(student, Checkpoint.open(target).files), f"{getattr(student, 'base_model_prefix', '')}."
    either = {**{name.removeprefix(prefix): value for name, value in trained.items()}, **trained}

    def becomes(name: str) -> torch.Tensor | None:
        module, _, leaf = name.rpartition(".")
        own = modules.get(module) if modules else None
        return either.get(f"{own}.{leaf}" if own else places[name].target)

    return becomes


def replace_tensors(target: Path, work: Path, value: Becomes, out: Path | None = None) -> None:
    """Write a folder with some tensors replaced by trained ones in their stored dtypes, in one step.

    Args:
        target: The folder.
        work: Folder of the work.
        value: Function of what a tensor becomes.
        out: Folder to write, which its loader must open; None replaces `target`.

    Raises:
        SqueezeError: If none of the tensors was trained.
        ModelError: If `out` would not load.
    """
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
    if out is None:
        _note(content)
    else:
        check_opens(content, checkpoint, out)
    folder.move_into_place(content, out or target, overwrite=True)


def is_trained(target: Path) -> bool:
    """Return whether replace_tensors has changed a folder."""
    return bool((Checkpoint.open(target).config.get("quantization_config") or {}).get("healed"))


def _note(content: Path) -> None:
    config = read_object(content / "config.json")
    config["quantization_config"]["healed"] = True
    (content / "config.json").write_text(json.dumps(config, indent=2) + "\n")
