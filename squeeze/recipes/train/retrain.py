"""Training of a compressed folder towards the original's outputs: `heal` for factors, `recover` for kept weights.

`heal` trains factors. `recover` trains the weights that pruning kept and leaves every zero in place (masked.py). Codes
on grids are trained in the same way (grids.py). Norms are trained with all of them. The loss and the files of a stopped
run are distil.py's, and by_block.py's if a model does not fit into memory.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from squeeze.errors import SqueezeError
from squeeze.factor.stored import FactorizedForm, FactorLinear
from squeeze.integrations.load_model import load_model
from squeeze.recipes.train.by_block import ByBlock, by_block
from squeeze.recipes.train.distil import STATE, Becomes, Distillation, Healing, Training, named, replace_tensors
from squeeze.recipes.train.masked import sparse_opening
from squeeze.recipes.train.student import Opening, norms
from squeeze.system.documents import read_object
from squeeze.system.unchanged import digest, stamps
from squeeze.system.work import discards, work_folder

__all__ = ["Retraining", "heal", "recover"]

_FACTORS = 3e-4, 16.0  # Adam's rate for each nat lost, and bytes for each weight of the original, if half of them stay
_LEAST_AGREEMENT = 0.2  # of the median block with the original's; of unrelated ones it is about 0
_BEFORE = "before.json"


@dataclass(frozen=True, kw_only=True)
class Retraining:
    """A training of a folder towards an original's outputs. A stopped run goes on.

    Attributes:
        original: The folder whose outputs are learned.
        target: The folder to train.
        opening: What is trained.
        tokens: int64 [N, L], sequences in random order, read as often as there is time.
        training: How long training takes, its rate, batch and seed.
        name: What it is called in progress and in the name of the work folder.
        task: Settings that a stopped run must share.
        blocks: Share of the time or steps in which each block has a loss of its own.
        out: Folder to write; None replaces `target`.
        held_out: int64 [N, L], sequences to measure the divergence on before and after; None measures nothing.
    """

    original: Path
    target: Path
    opening: Opening
    tokens: torch.Tensor
    training: Training
    name: str
    task: Mapping[str, Any] = field(default_factory=dict)
    blocks: float = 0.0
    out: Path | None = None
    held_out: torch.Tensor | None = None

    def run(self) -> Healing:
        """Train, and write the folder at the end.

        Raises:
            SqueezeError: A stopped run had other settings, there is nothing to train, or the original computes
                something else than the folder.
        """
        started, training = time.perf_counter(), self.training
        settings = {"original": stamps(self.original), "target": stamps(self.target), "tokens": digest(self.tokens)}
        settings |= {**self.task, **training.described()}
        discarded = discards(training.resume, overwrite=True)
        with work_folder(self.out or self.target, self.name, settings, discarded) as work:
            run, stored = self._prepared(work)
            total, progress, name = training.steps or 0, training.progress, self.name
            tick = (lambda count: progress(f"{name}, loss {run.losses[-1]:.4f}", run.step, total)) if progress else None
            before = None if self.held_out is None else self._before(run, work / _BEFORE, self.held_out)
            run.go(60 * training.minutes, training.steps, tick)
            after = None if self.held_out is None else _mean(run.lost(self.held_out))
            replace_tensors(self.target, work, stored(), self.out)
        return Healing(run.step, tuple(run.losses), time.perf_counter() - started, before, after)

    def _prepared(self, work: Path) -> tuple[Distillation | ByBlock, Callable[[], Becomes]]:
        """Return the training, by block if the models do not fit into memory, and a function of what tensors become.

        Raises SqueezeError if there is nothing to train.
        """
        how = self.original, self.target, self.opening, self.tokens, self.training, work, self.blocks
        return by_block(*how) or self._in_memory(work)

    def _in_memory(self, work: Path) -> tuple[Distillation, Callable[[], Becomes]]:
        """Return what `_prepared` returns, with both models in memory."""
        opening, device = self.opening, self.training.device
        student = load_model(self.target, torch.float32, device)
        own = {name: source for source, name in opening.places.items()}
        trained = opening.open(student, lambda name: own.get(name, name))
        if len(trained) == len(norms(student)):
            raise SqueezeError(f"{self.target}: {opening.lacks}")
        teacher, state = load_model(self.original, torch.float32, device), work / STATE
        run = Distillation(student, teacher, trained, self.tokens, self.training, opening.rate, state, self.blocks)
        run.block_rate = None if self.training.rate else opening.block_rate
        return run, lambda: named(student, opening.close(student), self.target, opening.places)

    def _before(self, run: Distillation | ByBlock, record: Path, held_out: torch.Tensor) -> float:
        """Return the divergence before training, which is kept in `record` for a run that goes on.

        Raises SqueezeError if the blocks of the two models have little in common.
        """
        if record.is_file():
            return float(read_object(record)["before"])
        agreements = sorted(run.agreements(held_out[:1].to(run.device)))
        if not agreements[len(agreements) // 2] >= _LEAST_AGREEMENT:
            raise SqueezeError(
                f"{self.target}: its blocks do not compute what those of {self.original} compute: name the model that "
                "it was made from; one that was rotated cannot be recovered"
            )
        before = _mean(run.lost(held_out))
        record.write_text(json.dumps({"before": before}))
        return before


def heal(
    original: Path | str, target: Path | str, tokens: torch.Tensor, training: Training, blocks: float = 0.0
) -> Healing:
    """Fine-tune the factors and norms of a factorised folder, and replace the folder at the end.

    A stopped run goes on.

    Args:
        original: The folder whose outputs are learned.
        target: The factorised folder.
        tokens: int64 [N, L], sequences in random order, read as often as there is time.
        training: How long training takes, its rate, batch and seed.
        blocks: Share of the time or steps in which each block has a loss of its own.

    Raises:
        SqueezeError: If a stopped run had other settings, or the folder has no factors in floating point.
    """
    models: dict[str, Any] = {"original": Path(original), "target": Path(target), "tokens": tokens}
    task = {"blocks": blocks}
    return Retraining(
        **models, opening=_FACTOR_OPENING, training=training, name="healing", task=task, blocks=blocks
    ).run()


def recover(
    original: Path | str, target: Path | str, tokens: torch.Tensor, training: Training, rank: int | None = None
) -> Healing:
    """Retrain the weights that pruning kept, and replace the folder at the end.

    A stopped run goes on.

    Args:
        original: The folder whose outputs are learned.
        target: The 2:4 folder.
        tokens: int64 [N, L], sequences in random order.
        training: How long training takes, its rate, batch and seed.
        rank: Rank of what is added to each matrix. None trains every kept weight, which learns faster and takes three
            times the memory.

    Raises:
        SqueezeError: If a stopped run had other settings, or the folder has no sparse weights in floating point.
    """
    models: dict[str, Any] = {"original": Path(original), "target": Path(target), "tokens": tokens}
    opening = sparse_opening(rank, training.seed, training.device)
    return Retraining(**models, opening=opening, training=training, name="recovering", task={"rank": rank}).run()


def _open_factors(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the factors and norms of a model by their names: the norms cost nothing to store again."""
    trainable: dict[str, nn.Parameter] = {}
    for name, module in model.named_modules():
        if isinstance(module, FactorLinear):
            trainable |= {f"{name}.{leaf}": parameter for leaf, parameter in module.named_parameters()}
    return trainable | norms(model)


_FACTOR_OPENING = Opening(
    FactorizedForm(),
    lambda block, names: _open_factors(block),
    _open_factors,
    "has no factors in floating point to heal",
    *_FACTORS,
)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
