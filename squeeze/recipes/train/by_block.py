"""Distillation with one block in memory, for models that do not fit. It computes the steps of distil.py to the bit.

A step runs the blocks of teacher and student forward, and the student's backward, loading each in turn. Hidden states,
gradients, parameters and Adam's moments go through files. Each block of the student runs twice, as in gradient
checkpointing.
"""

import json
import shutil
import tempfile
from collections.abc import Callable
from math import prod
from pathlib import Path

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.forward import each_block, forward, states_in
from squeeze.engine.gradients import backward, head_of
from squeeze.engine.network import Call, Network, run_block
from squeeze.errors import SqueezeError
from squeeze.quant.sources import floats
from squeeze.recipes.train.distil import RATE_SEQUENCES, STATE, Becomes, Training, rate_of
from squeeze.recipes.train.losses import agreement_of, divergence_of, error_of
from squeeze.recipes.train.student import Opening, Student
from squeeze.recipes.train.trainer import Steps, in_halves
from squeeze.system.documents import read_object
from squeeze.system.machine import free_memory

__all__ = ["ByBlock", "by_block"]

_PROGRESS = "progress.json"
_SHARE = 0.8  # of the memory that is free
_BYTES = 28  # of disk that a trained number takes: gradient, and value and Adam's moments before and after a step


class ByBlock(Steps):
    """A trainer of a student on the teacher's distribution, block by block.

    `work` is the folder of its files, from which a stopped run continues. `blocks` is the share of time or steps in
    which each block has a loss of its own. Raises SqueezeError if nothing can be trained.
    """

    saves_every_step = True

    def __init__(
        self,
        student: Student,
        teacher: Network,
        tokens: torch.Tensor,
        training: Training,
        work: Path,
        blocks: float = 0.0,
    ) -> None:
        self.student, self.teacher, self.work, self.blocks = student, teacher, work, blocks
        self.block_rate = None if training.rate else student.opening.block_rate
        super().__init__(tokens, 0.0, training.batch, training.seed, student.device)
        halves = in_halves(self.device)
        self.cast = torch.autocast(self.device.type, torch.bfloat16, enabled=halves, cache_enabled=False)
        if (work / _PROGRESS).is_file():
            saved = read_object(work / _PROGRESS)
            self.rate, self.step, self.seconds = saved["rate"], saved["step"], saved["seconds"]
            self.losses, student.step = saved["losses"], saved["step"]
        else:
            if not student.begin():
                raise SqueezeError(f"{student.checkpoint.folder}: {student.opening.lacks}")
            self._need_disk()
            self.rate = training.rate or rate_of(self._lost(tokens[:RATE_SEQUENCES]), student.opening.rate)
            self.save()

    def train(self, share: float, rate: float) -> float:
        """Run one step and return the mean loss."""
        ids = self._batch()
        with tempfile.TemporaryDirectory(dir=self.work) as folder, self.cast:
            total = self._block_gradients(ids, folder) if share < self.blocks else self._together(ids, Path(folder))
        self.student.move(rate)
        return total

    def _together(self, ids: torch.Tensor, folder: Path) -> float:
        """Compute gradients of the divergence through all blocks, and return the mean loss."""
        total, number = 0.0, 0
        self._teach(ids, folder)

        def loss(logits: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
            nonlocal total, number
            found = divergence_of(logits, self._teacher_logits(folder, number)) * 1 / self.batch
            total, number = total + float(found.detach()), number + 1
            return found

        for _, _, run in backward(self.student, ids, loss):
            run()
        return total

    def _block_gradients(self, ids: torch.Tensor, folder: str) -> float:
        """Compute gradients of each block's error on the teacher's inputs, and return the mean loss."""
        errors: list[list[torch.Tensor]] = []  # of each block, of each sequence
        states, blocks = states_in(folder, self.teacher, ids), len(self.teacher.blocks)
        slope = torch.ones((), device=self.device) / self.batch / blocks  # of the loss to one error, as autograd has it
        calls = self.teacher.calls(ids)
        runs = each_block(self.teacher, ids, calls, lambda number: states("hidden", number))
        for number, (name, _, run) in enumerate(runs):
            run()
            block, hidden = self.student.load(name), states("hidden", number)
            pairs = zip(hidden.read(self.device), states("hidden", number + 1).read(self.device), strict=True)
            errors.append([_error_backward(block, calls[number], x, expected, slope) for x, expected in pairs])
            self.student.release(name)
            hidden.path.unlink()
        return sum(float(torch.stack(one).mean() * 1 / self.batch) for one in zip(*errors, strict=True))

    def save(self) -> None:
        """Save in one step what a stopped run continues from."""
        done = {"rate": self.rate, "step": self.step, "seconds": self.seconds, "losses": self.losses}
        unfinished = (self.work / _PROGRESS).with_suffix(".unfinished")
        unfinished.write_text(json.dumps(done))
        unfinished.replace(self.work / _PROGRESS)
        before, self.student.step = self.student.step, self.step
        if before != self.step:
            self.student.forget(before)

    def _teach(self, ids: torch.Tensor, folder: Path) -> None:
        """Write the teacher's logits [L, V] of each sequence to a file."""
        outputs: list[torch.Tensor] = []
        for _, _, run in forward(self.teacher, ids, outputs.append):
            run()
        with head_of(self.teacher, ids) as head, torch.no_grad():
            for number, hidden in enumerate(outputs):
                torch.save(head(hidden).cpu(), folder / f"{number}.logits")

    def _teacher_logits(self, folder: Path, number: int) -> torch.Tensor:
        logits: torch.Tensor = torch.load(folder / f"{number}.logits", weights_only=True)
        return logits.to(self.device)

    def _need_disk(self) -> None:
        """Raise SqueezeError if the files of all trained parameters do not fit on the disk."""
        needed, free = _BYTES * self.student.trained, shutil.disk_usage(self.work).free
        if needed > free:
            raise SqueezeError(
                f"training {self.student.trained:,} numbers takes {needed / 1e9:.1f} GB in {self.work.parent}, and "
                f"{free / 1e9:.1f} GB are free there: make room, or train on a machine with more memory"
            )

    def lost(self, tokens: torch.Tensor) -> list[float]:
        """Return the divergence on each of some sequences, in nats a token."""
        with self.cast:
            return self._lost(tokens)

    @torch.no_grad()
    def _lost(self, tokens: torch.Tensor) -> list[float]:
        ids, outputs = tokens.to(self.device), list[torch.Tensor]()
        with tempfile.TemporaryDirectory(dir=self.work) as folder:
            self._teach(ids, Path(folder))
            for _, _, run in forward(self.student, ids, outputs.append):
                run()
            with head_of(self.student, ids) as head:
                pairs = ((head(x), self._teacher_logits(Path(folder), number)) for number, x in enumerate(outputs))
                return [float(divergence_of(*pair)) for pair in pairs]

    @torch.no_grad()
    def agreements(self, ids: torch.Tensor) -> list[float]:
        """Return the agreement of each block with the teacher's on a sequence [1, L] (distil.agreement_of)."""
        found: list[float] = []
        with tempfile.TemporaryDirectory(dir=self.work) as folder, self.cast:
            states, calls = states_in(folder, self.teacher, ids), self.teacher.calls(ids)
            runs = each_block(self.teacher, ids, calls, lambda number: states("hidden", number))
            for number, (name, _, run) in enumerate(runs):
                run()
                block = self.student.load(name)
                (x,), (expected,) = (list(states("hidden", one).read(self.device)) for one in (number, number + 1))
                found.append(agreement_of(run_block(block, x, calls[number]), expected, x))
                self.student.release(name)
        return found


def _error_backward(
    block: nn.Module, call: Call, x: torch.Tensor, expected: torch.Tensor, slope: torch.Tensor
) -> torch.Tensor:
    """Run a block on x [L, H], accumulate gradients of its error, and return the error."""
    with torch.enable_grad():
        error = error_of(run_block(block, x, call), expected, x)
        error.backward(slope)  # type: ignore[no-untyped-call]
    return error.detach()


def by_block(
    original: Path,
    target: Path,
    opening: Opening,
    tokens: torch.Tensor,
    training: Training,
    work: Path,
    blocks: float = 0.0,
) -> tuple[ByBlock, Callable[[], Becomes]] | None:
    """Return a training by block and a function of what tensors become, or None.

    It returns None if training fits into memory, at `opening.nbytes` for each of the original's weights, unless the
    stopped run in `work` went by block. It also returns None if parameters outside blocks are trained.

    Args:
        original: Folder of the teacher.
        target: Folder of the student.
        opening: What is trained.
        tokens: int64 [N, L], sequences.
        training: How long training takes, its rate, batch and seed.
        work: Folder of its files.
        blocks: Share of time or steps in which each block has a loss of its own.

    Raises:
        SqueezeError: If there is nothing to train.
    """
    if (work / STATE).is_file():
        return None
    try:
        checkpoint = floats(Checkpoint.open(original))
        weights = sum(prod(checkpoint.info(name).shape) for name in checkpoint.files)
        if not (work / _PROGRESS).is_file() and opening.nbytes * weights <= _room(training.device):
            return None
        student = Student(Checkpoint.open(target), opening, work, training.device)
        teacher = Network(checkpoint, training.device)
    except SqueezeError:  # load_model reads more forms, and says what is wrong with the others
        return None
    if not student.runs:
        return None
    return ByBlock(student, teacher, tokens, training, work, blocks), student.trained_tensors


def _room(device: str) -> float:
    """Return the bytes of memory that are available."""
    on_gpu = torch.device(device).type == "cuda"
    return _SHARE * (torch.cuda.mem_get_info(device)[0] if on_gpu else free_memory())
