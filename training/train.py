"""Train a model on a prepared corpus, from the point at which the last run stopped: `python -m training.train`.

The learning rate rises over the first hundredth, is constant, and falls to zero over the last part (Hägele et al. 2024,
arXiv:2405.18392). So a stopped run can continue with more bytes. Muon updates matrices, AdamW everything else.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from squeeze.recipes.train.byte_network import ByWords, Flat, Shape, State, build, compile_pieces, parameters
from squeeze.recipes.train.trainer import in_halves
from training import checkpoint, corpus as corpora
from training.evaluate import bits_by_kind
from training.streams import Batch, Rows

_WARM = 0.01  # share of the run


@dataclass(frozen=True)
class Plan:
    """The settings of a training."""

    rows: int = 32
    time: int = 512
    rate: float = 0.02  # of Muon
    adam_rate: float = 0.003
    decay: float = 0.05
    fall: float = 0.2  # share of the run in which the rates fall
    total: int = 300_000_000  # bytes

    def factor(self, seen: int) -> float:
        """Return the factor of the learning rates after `seen` bytes."""
        share = seen / self.total
        return min(1.0, (share + 1e-4) / _WARM, max(0.0, (1 - share) / self.fall))


@dataclass
class Training:
    """The state of a training: model, optimizers and rows."""

    model: Flat | ByWords
    plan: Plan
    rows: Rows
    seen: int = 0  # bytes
    seconds: float = 0.0

    def __post_init__(self) -> None:
        matrices = [weight for name, weight in self.model.named_parameters() if _is_matrix(name, weight)]
        others = [weight for name, weight in self.model.named_parameters() if not _is_matrix(name, weight)]
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, self.plan.rate, weight_decay=self.plan.decay),
            torch.optim.AdamW(others, self.plan.adam_rate, (0.9, 0.98), weight_decay=0.0),
        ]
        self.state = self.model.start(len(self.rows.numbers))

    def step(self) -> Tensor:
        """Learn from the next piece of every row.

        Return the loss in nats per byte, which a GPU may still be computing.
        """
        for optimizer, rate in zip(self.optimizers, (self.plan.rate, self.plan.adam_rate), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * self.plan.factor(self.seen)
        batch = self.rows.take()
        loss, self.state = _loss(self.model, batch, self.state)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.seen += batch.known
        return loss.detach()


def _is_matrix(name: str, weight: Tensor) -> bool:
    apart = name.endswith(("taps", "embedding.weight", "head.weight")) or name.startswith("grams.")
    return weight.ndim == 2 and not apart


def _loss(model: Flat | ByWords, batch: Batch, state: State) -> tuple[Tensor, State]:
    """Return the mean loss in nats, and the state for the following piece."""
    device = model.head.weight.device
    begun = model.start(len(batch.fresh))
    state = [
        torch.where(batch.fresh.view(-1, *[1] * (old.ndim - 1)), new, old)
        for new, old in zip(begun, state, strict=True)
    ]
    with torch.autocast(device.type, torch.bfloat16, enabled=in_halves(device)):
        logits, state = model(batch.inputs, state)
    loss = functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=-1)
    return loss, [part.detach() for part in state]


def run(training: Training, minutes: float, every: float) -> Iterator[dict[str, Any]]:
    """Train until all bytes were seen or the time is up, and yield log entries.

    Args:
        training: the training
        minutes: time limit
        every: minutes between two log entries; one more is yielded at the end
    """
    losses: list[Tensor] = []
    begun = noted = time.monotonic()
    before = training.seconds
    while training.seen < training.plan.total and time.monotonic() - begun < 60 * minutes:
        losses.append(training.step())
        training.seconds = before + time.monotonic() - begun
        if time.monotonic() - noted > 60 * every:
            yield _record(training, losses)
            losses, noted = [], time.monotonic()
    if losses:
        yield _record(training, losses)


def _record(training: Training, losses: list[Tensor]) -> dict[str, Any]:
    mean = float(torch.stack(losses).mean()) / float(np.log(2))
    return {"bytes": training.seen, "seconds": round(training.seconds), "train_bits": round(mean, 4)}


def _options(kind: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the fields of a dataclass as options of a command."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        for field in reversed(fields(kind)):
            option = "--" + field.name.replace("_", "-")
            command = click.option(option, type=type(field.default), default=field.default, show_default=True)(command)
        return command

    return add


@click.command()
@click.option(
    "--corpus", type=click.Path(path_type=Path, exists=True), required=True, help="Folder that prepare wrote."
)
@click.option("--into", type=click.Path(path_type=Path), required=True, help="Folder of checkpoint and log.")
@click.option("--documents", type=int, help="Number of documents to read, default: all.")
@click.option("--minutes", default=1e9, help="Time limit of this run.")
@click.option("--every", default=5.0, show_default=True, help="Minutes between checkpoints.")
@click.option("--device", default="cpu", show_default=True)
@click.option("--threads", default=0, help="Threads of torch and of the recurrences; 0 for all.")
@click.option("--compile/--no-compile", "compiles", default=True, help="Compile everything except the recurrences.")
@_options(Shape)
@_options(Plan)
def main(
    corpus: Path,
    into: Path,
    documents: int | None,
    minutes: float,
    every: float,
    device: str,
    threads: int,
    compiles: bool,
    **given: Any,
) -> None:
    """Train a model on CORPUS. A run with the same INTO continues where the last one stopped."""
    if threads:
        torch.set_num_threads(threads)
    if compiles:
        compile_pieces()
    torch.manual_seed(0)
    shape = Shape(**{field.name: given[field.name] for field in fields(Shape)})
    plan = Plan(**{field.name: given[field.name] for field in fields(Plan)})
    kinds, facts = corpora.names(corpus)["kinds"], json.loads((corpus / "corpus.json").read_text("utf-8"))
    held = corpora.read(corpus, "held_out")
    into.mkdir(parents=True, exist_ok=True)
    rows = Rows.begin(corpora.read(corpus, "train").part(0, documents), plan.rows, plan.time, device)
    training = Training(build(shape).to(device), plan, rows)
    if checkpoint.exists(into):
        checkpoint.restore(training, into)
    else:
        _note(
            into,
            {
                **asdict(shape),
                **asdict(plan),
                "corpus": facts["train"]["sha256"][:16],
                "documents": len(rows.split),
                "device": device,
                "parameters": parameters(training.model),
            },
        )
    for record in run(training, minutes, every):
        checkpoint.save(training, into)
        _note(into, record | bits_by_kind(training.model, held, kinds))


def _note(into: Path, record: dict[str, Any]) -> None:
    line = json.dumps(record)
    with (into / "log.jsonl").open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    click.echo(line)


if __name__ == "__main__":
    main()
