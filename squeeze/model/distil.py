"""Trains part of a model to give the original's outputs, without labels, in a run that can be stopped and gone on with.

All parameters at once learn the original's distribution of the next token (distillation, Hinton et al. 2015, arXiv
1503.02531); for a share of the time each block first learns by itself what the original's block makes of the same
inputs (as OmniQuant, Shao et al. 2023, arXiv 2308.13137, trains). Adam's moments, what is trained and the place in the
data are saved every few steps.
"""

import json
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from squeeze.model.checkpoint import Checkpoint, Parts, copy_other_files
from squeeze.model.network import find_blocks
from squeeze.packing import folder

__all__ = ["Distillation", "Healing", "divergence", "is_trained", "rate_for", "replace_tensors"]

_SAVE_EVERY = 20  # steps
_RATE_SEQUENCES = 4


@dataclass(frozen=True)
class Healing:
    """What a training did. losses: the mean KL divergence (or squared error of blocks) of every step; seconds: all."""

    steps: int
    losses: tuple[float, ...]
    seconds: float


class Distillation:
    """Trains parameters of a student to give a teacher's outputs; `step` steps are done, in `seconds`. state: the file
    from which a stopped run goes on. blocks: share of the time, or steps, in which every block learns by itself."""

    def __init__(
        self,
        student: nn.Module,
        teacher: nn.Module,
        trained: dict[str, nn.Parameter],
        tokens: torch.Tensor,
        rate: float,
        batch: int,
        blocks: float,
        seed: int,
        state: Path,
    ) -> None:
        self.student, self.teacher, self.trained = student, teacher, trained
        self.tokens, self.rate, self.batch, self.seed, self.state = tokens, rate, batch, seed, state
        self.blocks, self.step, self.seconds = blocks, 0, 0.0
        self.losses: list[float] = []
        for parameter in trained.values():
            parameter.requires_grad_(True)
        self.optimiser = torch.optim.AdamW(trained.values(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
        if state.is_file():
            self._load()

    def _load(self) -> None:
        saved = torch.load(self.state, weights_only=True)
        with torch.no_grad():
            for name, parameter in self.trained.items():
                parameter.copy_(saved["values"][name])
        self.optimiser.load_state_dict(saved["optimiser"])
        self.step, self.seconds, self.losses = saved["step"], saved["seconds"], saved["losses"]

    def save(self) -> None:
        """In one step."""
        values = {name: parameter.data for name, parameter in self.trained.items()}
        saved = {"values": values, "optimiser": self.optimiser.state_dict(), "losses": self.losses}
        unfinished = self.state.with_suffix(".unfinished")
        torch.save({**saved, "step": self.step, "seconds": self.seconds}, unfinished)
        unfinished.replace(self.state)

    def go(self, seconds: float, steps: int | None, progress: Callable[[int], None] | None) -> None:
        """Train until the time or the steps are over."""
        while (self.step < steps) if steps is not None else (self.seconds < seconds):
            began = time.perf_counter()
            part = self.step / steps if steps else self.seconds / seconds
            for group in self.optimiser.param_groups:
                group["lr"] = self.rate * min(1.0, (part + 1e-2) / 0.1) * 0.5 * (1 + math.cos(math.pi * part))
            self.losses.append(self._train(self._by_block if part < self.blocks else self._divergence))
            self.step += 1
            self.seconds += time.perf_counter() - began
            if self.step % _SAVE_EVERY == 0:
                self.save()
            if progress:
                progress(1)

    def _train(self, loss_of: Callable[[torch.Tensor], torch.Tensor]) -> float:
        """One step, sequence by sequence; the mean loss."""
        total = 0.0
        for ids in torch.split(self._batch(), 1):
            with torch.enable_grad():
                loss = loss_of(ids) / self.batch
                loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        nn.utils.clip_grad_norm_(self.trained.values(), 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad()
        return total

    def _divergence(self, ids: torch.Tensor) -> torch.Tensor:
        return divergence(self.student, self.teacher, ids)

    def _by_block(self, ids: torch.Tensor) -> torch.Tensor:
        """The mean over blocks of |y' - y|^2 / |y - x|^2: y is what the original's block makes of its input x, y' what
        the student's block makes of the same x. No gradient passes from block to block."""
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
            found = out[0] if isinstance(out, tuple) else out
            losses.append((found - wanted).square().sum() / (wanted - x).square().sum().clamp(min=1e-12))
        return torch.stack(losses).mean()

    def _batch(self) -> torch.Tensor:
        """The sequences of this step: each pass over all of them has its own order."""
        count = len(self.tokens)
        first, rows = self.step * self.batch, []
        for at in range(first, first + self.batch):
            order = torch.randperm(count, generator=torch.Generator().manual_seed(self.seed + at // count))
            rows.append(self.tokens[order[at % count]])
        return torch.stack(rows).to(next(self.student.parameters()).device)


def divergence(student: nn.Module, teacher: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """KL(teacher || student) on a sequence [1, L], nats a token."""
    with torch.no_grad():
        wanted = torch.log_softmax(teacher(ids, use_cache=False).logits[0].float(), -1)
    found = torch.log_softmax(student(ids, use_cache=False).logits[0].float(), -1)
    return functional.kl_div(found, wanted, reduction="batchmean", log_target=True)


@torch.no_grad()
def rate_for(student: nn.Module, teacher: nn.Module, tokens: torch.Tensor, factor: float) -> float:
    """A rate of Adam that suits the damage: so much a nat of divergence on the first sequences. Every step moves every
    parameter by about the rate, which costs a model that has lost little more than it can learn."""
    few = tokens[:_RATE_SEQUENCES].to(next(student.parameters()).device)
    lost = [float(divergence(student, teacher, ids)) for ids in torch.split(few, 1)]
    return factor * min(sum(lost) / len(lost), 1.0)


def replace_tensors(target: Path, work: Path, student: nn.Module, trained: dict[str, nn.Parameter]) -> None:
    """Put trained tensors into the folder `target`, in their stored types, in one step."""
    checkpoint, parts, made = Checkpoint.open(target), Parts(work), work / folder.CONTENT
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    prefix = f"{getattr(student, 'base_model_prefix', '')}."
    values = {**{name.removeprefix(prefix): value for name, value in trained.items()}, **trained}
    for number, name in enumerate(checkpoint.files):
        tensor = checkpoint.load([name], strict=False)[name]
        if name in values:
            tensor = values[name].detach().to("cpu", tensor.dtype)
        parts.put(str(number), {name: tensor})
    parts.join(map(str, range(len(checkpoint.files))), made)
    copy_other_files(target, made)
    _note(made)
    folder.move_into_place(made, target, overwrite=True)


def is_trained(target: Path) -> bool:
    """Whether replace_tensors has been at a folder."""
    return bool((Checkpoint.open(target).config.get("quantization_config") or {}).get("healed"))


def _note(made: Path) -> None:
    config: dict[str, Any] = json.loads((made / "config.json").read_text())
    config["quantization_config"]["healed"] = True
    (made / "config.json").write_text(json.dumps(config, indent=2) + "\n")
