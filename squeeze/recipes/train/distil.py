"""Trains part of a model to give the original's outputs, without labels, in a run that can be stopped and gone on with.

All parameters at once learn the original's distribution of the next token (distillation, Hinton et al. 2015, arXiv
1503.02531); for a share of the time each block first learns by itself what the original's block makes of the same
inputs (as OmniQuant, Shao et al. 2023, arXiv 2308.13137, trains). Adam's moments, what is trained and the place in the
data are saved every few steps. Parameters and moments are float32; products are bfloat16 where the device has units for
that (`in_halves`), which makes a step twice as fast on processors with AMX.
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

from squeeze.checkpoint.checkpoint import Checkpoint, Parts, copy_other_files, disk_told
from squeeze.engine.network import find_blocks
from squeeze.engine.pipeline import Progress
from squeeze.packing import folder
from squeeze.system.json_object import read_object

__all__ = [
    "Distillation",
    "Healing",
    "Training",
    "divergence",
    "in_halves",
    "is_trained",
    "rate_for",
    "replace_tensors",
]

_SAVE_EVERY = 20  # steps
_RATE_SEQUENCES = 4
_ROWS = 16  # of logits


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

    def described(self) -> dict[str, Any]:
        """What a stopped run has to agree in."""
        return {name: getattr(self, name) for name in ("rate", "batch", "seed", "minutes", "steps")}


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
        for model in (student, teacher):
            model.requires_grad_(False)
        for parameter in trained.values():
            parameter.requires_grad_(True)
        device = next(student.parameters()).device
        self.cast = torch.autocast(device.type, torch.bfloat16, enabled=in_halves(device))
        if in_halves(device):
            for model in (student, teacher):
                _halve_fixed(model)
        self.optimiser = torch.optim.AdamW(trained.values(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
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
        with disk_told(unfinished):
            torch.save({**saved, "step": self.step, "seconds": self.seconds}, unfinished)
        unfinished.replace(self.state)

    def go(self, seconds: float, steps: int | None, progress: Callable[[int], None] | None) -> None:
        """Train until the time or the steps are over."""
        while (self.step < steps) if steps is not None else (self.seconds < seconds):
            began = time.perf_counter()
            share = self.step / steps if steps else self.seconds / seconds
            for group in self.optimiser.param_groups:
                group["lr"] = self.rate * min(1.0, (share + 1e-2) / 0.1) * 0.5 * (1 + math.cos(math.pi * share))
            self.losses.append(self._train(self._by_block if share < self.blocks else self._divergence))
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
                with self.cast:
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
            ours = out[0] if isinstance(out, tuple) else out
            error, size = (ours.float() - wanted).square().sum(), (wanted.float() - x).square().sum()
            losses.append(error / size.clamp(min=1e-12))
        return torch.stack(losses).mean()

    def _batch(self) -> torch.Tensor:
        """The sequences of this step: each pass over all of them has its own order."""
        count = len(self.tokens)
        first, rows = self.step * self.batch, []
        for number in range(first, first + self.batch):
            order = torch.randperm(count, generator=torch.Generator().manual_seed(self.seed + number // count))
            rows.append(self.tokens[order[number % count]])
        return torch.stack(rows).to(next(self.student.parameters()).device)


def _halve_fixed(model: nn.Module) -> None:
    """Make the matrices that are not trained bfloat16 once, instead of for every product."""
    for module in model.modules():
        if isinstance(module, nn.Linear) and not module.weight.requires_grad:
            module.weight = nn.Parameter(module.weight.to(torch.bfloat16), requires_grad=False)


def in_halves(device: torch.device) -> bool:
    """Whether a device multiplies matrices of bfloat16 faster than those of float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "cpu" and bool(torch.cpu.get_capabilities().get("amx_bf16"))


def divergence(student: nn.Module, teacher: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """KL(teacher || student) on a sequence [1, L], nats a token."""
    with torch.no_grad():
        wanted = teacher(ids, use_cache=False).logits[0]
    return _Divergence.apply(student(ids, use_cache=False).logits[0], wanted)  # type: ignore[no-any-return, no-untyped-call]


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
    few = tokens[:_RATE_SEQUENCES].to(next(student.parameters()).device)
    lost = [float(divergence(student, teacher, ids)) for ids in torch.split(few, 1)]
    return factor * min(sum(lost) / len(lost), 1.0)


def replace_tensors(target: Path, work: Path, student: nn.Module, trained: dict[str, nn.Parameter]) -> None:
    """Put trained tensors into the folder `target`, in their stored types, in one step."""
    checkpoint, parts, content = Checkpoint.open(target), Parts(work), work / folder.CONTENT
    shutil.rmtree(content, ignore_errors=True)
    content.mkdir()
    prefix = f"{getattr(student, 'base_model_prefix', '')}."
    values = {**{name.removeprefix(prefix): value for name, value in trained.items()}, **trained}
    for number, name in enumerate(checkpoint.files):
        tensor = checkpoint.load([name], strict=False)[name]
        if name in values:
            tensor = values[name].detach().to("cpu", tensor.dtype)
        parts.put(str(number), {name: tensor})
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
