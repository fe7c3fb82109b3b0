"""Distillation with one block in memory: distil.py's steps, to the bit, for models that do not fit.

A step runs the teacher's blocks and the student's forward, and the student's back, each loaded when it is its turn;
hidden states, gradients, what is learned and Adam's moments go through files. Each block of the student runs twice, as
with gradient checkpointing at blocks.
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
from squeeze.recipes.train.distil import RATE_SEQUENCES, STATE, Becomes, Training, divergence_of, error_of, rate_of
from squeeze.recipes.train.student import Opening, Student
from squeeze.recipes.train.trainer import Steps, in_halves
from squeeze.system.documents import read_object
from squeeze.system.machine import free_memory

__all__ = ["ByBlock", "by_block"]

_PROGRESS = "progress.json"
_SHARE = 0.8  # of the memory that is free
_BYTES = 28  # of disk that a trained number takes: gradient, and value and Adam's moments before and after a step


class ByBlock(Steps):
    """Trains a student to give the teacher's distribution. work: the folder for files, from which a stopped run goes
    on. blocks: share of the time, or steps, in which every block learns by itself. Raises SqueezeError where nothing
    can be trained."""

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
            self.rate = training.rate or rate_of(self._lost(), student.opening.rate)
            self.save()

    def train(self, share: float, rate: float) -> float:
        """As Trainer.train."""
        ids = self._batch()
        with tempfile.TemporaryDirectory(dir=self.work) as folder, self.cast:
            total = self._each_alone(ids, folder) if share < self.blocks else self._together(ids, Path(folder))
        self.student.move(rate)
        return total

    def _together(self, ids: torch.Tensor, folder: Path) -> float:
        """The gradients of the divergence of all blocks after each other; the mean loss."""
        total, number = 0.0, 0
        self._teach(ids, folder)

        def loss(logits: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
            nonlocal total, number
            found = divergence_of(logits, self._wanted(folder, number)) * 1 / self.batch
            total, number = total + float(found.detach()), number + 1
            return found

        for _, _, run in backward(self.student, ids, loss):
            run()
        return total

    def _each_alone(self, ids: torch.Tensor, folder: str) -> float:
        """The gradients of what each block makes of the inputs of the teacher's; the mean loss."""
        errors: list[list[torch.Tensor]] = []  # of each block, of each sequence
        states, blocks = states_in(folder, self.teacher, ids), len(self.teacher.blocks)
        slope = torch.ones((), device=self.device) / self.batch / blocks  # of the loss to one error, as autograd has it
        calls = self.teacher.calls(ids)
        runs = each_block(self.teacher, ids, calls, lambda number: states("hidden", number))
        for number, (name, _, run) in enumerate(runs):
            run()
            block, given = self.student.load(name), states("hidden", number)
            pairs = zip(given.read(self.device), states("hidden", number + 1).read(self.device), strict=True)
            errors.append([_back(block, calls[number], x, wanted, slope) for x, wanted in pairs])
            self.student.release(name)
            given.path.unlink()
        return sum(float(torch.stack(one).mean() * 1 / self.batch) for one in zip(*errors, strict=True))

    def save(self) -> None:
        """As Trainer.save."""
        done = {"rate": self.rate, "step": self.step, "seconds": self.seconds, "losses": self.losses}
        unfinished = (self.work / _PROGRESS).with_suffix(".unfinished")
        unfinished.write_text(json.dumps(done))
        unfinished.replace(self.work / _PROGRESS)
        before, self.student.step = self.student.step, self.step
        if before != self.step:
            self.student.forget(before)

    def _teach(self, ids: torch.Tensor, folder: Path) -> None:
        """Write the teacher's logits [L, V] of each sequence."""
        outputs: list[torch.Tensor] = []
        for _, _, run in forward(self.teacher, ids, outputs.append):
            run()
        with head_of(self.teacher, ids) as head, torch.no_grad():
            for number, hidden in enumerate(outputs):
                torch.save(head(hidden).cpu(), folder / f"{number}.logits")

    def _wanted(self, folder: Path, number: int) -> torch.Tensor:
        wanted: torch.Tensor = torch.load(folder / f"{number}.logits", weights_only=True)
        return wanted.to(self.device)

    def _need_disk(self) -> None:
        """Raises SqueezeError where files of all that is trained will not fit beside the work."""
        needed, free = _BYTES * self.student.trained, shutil.disk_usage(self.work).free
        if needed > free:
            raise SqueezeError(
                f"training {self.student.trained:,} numbers takes {needed / 1e9:.1f} GB beside {self.work.parent}, and "
                f"{free / 1e9:.1f} GB are free there: make room, or train on a machine with more memory"
            )

    def _lost(self) -> list[float]:
        """The divergence on each of the first sequences."""
        few, outputs = self.tokens[:RATE_SEQUENCES].to(self.device), list[torch.Tensor]()
        with tempfile.TemporaryDirectory(dir=self.work) as folder, torch.no_grad():
            self._teach(few, Path(folder))
            for _, _, run in forward(self.student, few, outputs.append):
                run()
            with head_of(self.student, few) as head:
                pairs = ((head(x), self._wanted(Path(folder), number)) for number, x in enumerate(outputs))
                return [float(divergence_of(*pair)) for pair in pairs]


def _back(block: nn.Module, call: Call, x: torch.Tensor, wanted: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    """The error of a block's output for x [L, H], whose gradients it is left with."""
    with torch.enable_grad():
        error = error_of(run_block(block, x, call), wanted, x)
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
    """A training by block, and what the tensors of the checkpoint become then: where one in memory, which needs
    `opening.nbytes` for each of the original's weights, has no room, or the run that was stopped in `work` went so.
    None otherwise, and where there is more to train than what goes by block. Raises SqueezeError where there is
    nothing."""
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
    return ByBlock(student, teacher, tokens, training, work, blocks), student.learned


def _room(device: str) -> float:
    """Bytes that may be taken."""
    on_gpu = torch.device(device).type == "cuda"
    return _SHARE * (torch.cuda.mem_get_info(device)[0] if on_gpu else free_memory())
