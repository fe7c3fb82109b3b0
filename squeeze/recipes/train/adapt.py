"""Training of a LoRA adapter of a language model on text (Hu et al. 2021, arXiv:2106.09685), to compress similar text
better.

lm/adapter.py defines the adapter and adds it to a model.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from squeeze.errors import SqueezeError
from squeeze.integrations.gguf.import_ import import_gguf, named
from squeeze.integrations.load_model import load_model
from squeeze.lm import adapter
from squeeze.lm.models import BUNDLED, BUNDLED_ADAPTER, NO_ADAPTER, LoadedModel, find
from squeeze.lm.sources import INNER, OUTER
from squeeze.recipes.train.distil import Training
from squeeze.recipes.train.trainer import Loss, Trainer, cast, halve_fixed
from squeeze.system import files
from squeeze.system.unchanged import digest
from squeeze.system.work import discards, scratch_folder, work_folder

__all__ = ["Adaptation", "Passages", "adapt", "adapt_to", "fill", "read_passages"]

RANK = 16
LENGTH = 512  # tokens of a passage
MOST = 8192  # passages
_BYTES = 3  # of a token, about
_FEWEST = 24  # passages
_CONTINUED = bytes(range(0x80, 0xC0))  # what no character of UTF-8 begins with
_RATE = 4e-4
_ROWS = 128  # of logits
_TYPICAL = 3 / 127  # of a normal distribution with a deviation of 1, a step of its values in 8 bits
_MATRICES = ("query", "key", "value", "output", "gate", "up", "down")
_NORMS = ("attention_norm", "feed_forward_norm")


@dataclass(frozen=True)
class Passages:
    """Token ids, int64 [N, L], which encode `size` bytes. Each row begins with the start token and may end in -1."""

    tokens: torch.Tensor
    size: int


@dataclass(frozen=True)
class Adaptation:
    """Bits a byte of held-out passages by name, before and after a training.

    Before it, the model has the adapter that the training continues, if any.
    """

    before: dict[str, float]
    after: dict[str, float]
    steps: int
    seconds: float


def read_passages(
    model: LoadedModel, texts: Sequence[Path], length: int = LENGTH, most: int = MOST
) -> tuple[Passages, Passages]:
    """Read passages to train on, at most `most`, and hold out one in 20.

    They are pieces of the files, chosen so that each byte is equally likely. Raises SqueezeError if there is too little
    text.

    Args:
        model: The language model, whose tokenizer is used.
        texts: Text files.
        length: Tokens of a passage.
        most: Largest number of passages.
    """
    size = _BYTES * length
    places = [(path, start) for path in texts for start in range(0, path.stat().st_size, size)]
    rng = np.random.default_rng(0)
    selected = [places[i] for i in rng.permutation(len(places))[: most + most // 20]]
    if len(selected) < _FEWEST:
        raise SqueezeError(
            f"an adapter needs at least {_FEWEST * size >> 10} KB of text to learn from: name more files"
        )
    held_out_count = max(2, len(selected) // 20)
    return _tokenised(model, selected[held_out_count:], length), _tokenised(model, selected[:held_out_count], length)


def _tokenised(model: LoadedModel, places: list[tuple[Path, int]], length: int) -> Passages:
    rows, size = np.full((len(places), length + 1), -1, np.int64), 0
    for row, (path, start) in zip(rows, places, strict=True):
        with path.open("rb") as file:
            file.seek(start)
            piece = file.read(_BYTES * length).lstrip(_CONTINUED)
        size += fill(row, 0, model, piece)
    return Passages(torch.from_numpy(rows), size)


def fill(row: np.ndarray, place: int, model: LoadedModel, text: bytes) -> int:
    """Write the start token and as many tokens of a text as fit into a row, and return the bytes that they encode."""
    start = model.weights.config.start_token
    entries = model.tokenizer.encode(text)[: len(row) - place - 1]
    row[place] = start
    row[place + 1 : place + 1 + len(entries)] = np.where(
        entries < 0, start, model.weights.leaves[np.maximum(entries, 0)]
    )
    return len(model.tokenizer.decode(entries))


def adapt(
    model: nn.Module, passages: Passages, held_out: Mapping[str, Passages], out: Path, training: Training,
    rank: int = RANK, log: Callable[[int, float], None] | None = None, start: adapter.Adapter | None = None,
) -> Adaptation:  # fmt: skip
    """Train an adapter and write it to a file.

    Args:
        model: A transformers model in float32, which is changed.
        passages: Passages to train on.
        held_out: Passages to measure on, by name.
        out: File to write.
        training: How long training takes, its rate, batch and seed.
        rank: Rank of the adapter.
        log: Called with messages.
        start: An adapter of the same rank to continue.
    """
    task = {"tokens": digest(passages.tokens), "rank": rank, "start": start and start.digest} | training.described()
    model.requires_grad_(False)
    torch.manual_seed(training.seed)
    trained = _insert(model, rank)
    if start is not None:
        _set(model, start)
    before = {name: bits_a_byte(model, held) for name, held in held_out.items()}
    with work_folder(out, "adapter", task, discards(training.resume, overwrite=True)) as work:
        rate = training.rate or _RATE
        run = _Adapting(model, trained, passages.tokens, rate, training.batch, training.seed, work / "state.pt")
        total = training.steps or 0

        def tick(count: int) -> None:
            if training.progress:
                training.progress(f"adapter, loss {run.losses[-1]:.4f}", run.step, total)
            if log:
                log(run.step, run.losses[-1])

        run.go(60 * training.minutes, training.steps, tick)
        factors, norms = _trained(model)
        after = {name: bits_a_byte(model, held) for name, held in held_out.items()}
        adapter.save(out, factors, norms)
    return Adaptation(before, after, run.step, run.seconds)


class _Adapting(Trainer):
    """A trainer of next-token prediction."""

    def __init__(self, model: nn.Module, trained: dict[str, nn.Parameter], *others: Any) -> None:
        super().__init__(trained, *others)
        self.model = model
        if self.halves:
            halve_fixed(model)

    def loss_at(self, share: float) -> Loss:
        return lambda ids: _loss(self.model, ids)


class LoraLinear(nn.Module):
    """A linear layer with a low-rank change: x W^T + (x a^T) b^T."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer
        self.a = nn.Parameter(torch.randn(rank, layer.in_features, device=layer.weight.device))
        self.b = nn.Parameter(torch.zeros(layer.out_features, rank, device=layer.weight.device))
        self.gain = 2 / math.sqrt(layer.in_features)  # of a as it begins, times the usual 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + functional.linear(functional.linear(x, self.a * self.gain), self.b)  # type: ignore[no-any-return]

    @torch.no_grad()
    def set(self, change: adapter.LowRank) -> None:
        """Set a change of the same rank, with `a` rescaled to the size that it is initialised with."""
        a, b, scale = (torch.tensor(part).to(self.a) for part in (change.a, change.b, change.scale))
        self.a.copy_(a * _TYPICAL)
        self.b.copy_(b * (scale / _TYPICAL / self.gain))

    def rounded(self) -> adapter.LowRank:
        a, b = (part.detach().float().cpu().numpy() for part in (self.a * self.gain, self.b))
        return adapter.round_factors(a, b)


def _insert(model: nn.Module, rank: int) -> dict[str, nn.Parameter]:
    """Wrap all matrices of all blocks in adapters, and return the parameters to train, norms included."""
    trained: dict[str, nn.Parameter] = {}
    for _, place in _places(model, _MATRICES):
        parent, _, leaf = place.rpartition(".")
        layer = LoraLinear(model.get_submodule(place), rank)  # type: ignore[arg-type]
        setattr(model.get_submodule(parent), leaf, layer)
        trained |= {f"{place}.a": layer.a, f"{place}.b": layer.b}
    for _, place in _places(model, _NORMS):
        trained[place] = model.get_parameter(f"{place}.weight")
    for parameter in trained.values():
        parameter.requires_grad_(True)
    return trained


@torch.no_grad()
def _set(model: nn.Module, start: adapter.Adapter) -> None:
    for name, place in _places(model, _MATRICES):
        model.get_submodule(place).set(start.changes[name])  # type: ignore[operator]
    for name, place in _places(model, _NORMS):
        model.get_parameter(f"{place}.weight").copy_(torch.tensor(start.norms[name]))


def _trained(model: nn.Module) -> tuple[dict[str, adapter.LowRank], dict[str, np.ndarray]]:
    changes = {name: model.get_submodule(place).rounded() for name, place in _places(model, _MATRICES)}  # type: ignore[operator]
    norms = {
        name: model.get_parameter(f"{place}.weight").detach().float().cpu().numpy()
        for name, place in _places(model, _NORMS)
    }
    return changes, norms


def _places(model: nn.Module, parts: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield lm's name of each part of each block with its module's name, and of the last norm if norms are
    requested."""
    for i in range(model.config.num_hidden_layers):  # type: ignore[union-attr, arg-type]
        for part in parts:
            yield f"{i}.{part}", f"model.layers.{i}.{INNER[part][0].removesuffix('.weight')}"
    if parts is _NORMS:
        yield "final_norm", OUTER["final_norm"][0].removesuffix(".weight")


def _loss(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Return the mean loss in nats of tokens [1, L], without the first."""
    ids = ids[:, : int((ids[0] >= 0).sum())]
    states = model.model(ids[:, :-1], use_cache=False).last_hidden_state[0]  # type: ignore[operator, union-attr]
    head: torch.Tensor = model.get_output_embeddings().weight  # type: ignore[operator, union-attr]
    return _CrossEntropy.apply(states, head, ids[0, 1:])  # type: ignore[no-any-return, no-untyped-call]


class _CrossEntropy(torch.autograd.Function):
    """The mean of -ln softmax(states @ head^T) at the targets, some rows of logits at a time, with a fixed head."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, head: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        gradient, total = torch.empty_like(states), torch.zeros((), device=states.device)
        for first in range(0, len(states), _ROWS):
            rows = slice(first, first + _ROWS)
            chances = functional.linear(states[rows], head.to(states.dtype)).float().log_softmax(-1)
            total -= chances.gather(1, targets[rows, None]).sum()
            slope = chances.exp_()
            slope.scatter_add_(1, targets[rows, None], -torch.ones_like(slope[:, :1]))
            gradient[rows] = slope.to(states.dtype) @ head.to(states.dtype)
        ctx.save_for_backward(gradient.div_(len(states)))
        return total / len(states)

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * slopes[0].to(gradient.dtype), None, None


@torch.no_grad()
def bits_a_byte(model: nn.Module, passages: Passages) -> float:
    """Return the bits a byte that the model spends on passages, each by itself."""
    device, total = next(model.parameters()).device, 0.0
    with cast(device):
        for ids in torch.split(passages.tokens.to(device), 1):
            total += float(_loss(model, ids)) * (int((ids >= 0).sum()) - 1)
    return total / math.log(2) / passages.size


def adapt_to(
    texts: Sequence[Path], model: Path | None, out: Path, training: Training, rank: int = RANK, overwrite: bool = False
) -> Adaptation:
    """Train an adapter of a model on text files and write it to a file.

    The bundled model's training continues from the bundled adapter if the rank is the same.

    Args:
        texts: Text files.
        model: A folder or GGUF file; None for the bundled model.
        out: File to write.
        training: How long training takes, its rate, batch and seed.
        rank: Rank of the adapter.
        overwrite: Whether to replace an existing file.

    Raises:
        ModelError: If the model is missing, or its architecture cannot run exactly.
        SqueezeError: If `out` exists, or there is too little text.
    """
    files.check_target(out, texts, overwrite)
    training = replace(training, resume=training.resume or not overwrite)
    found = find(model, NO_ADAPTER)
    lessons, held_out = read_passages(found, texts)
    if model is not None and model.is_dir():
        return adapt(
            load_model(model, torch.float32, training.device),
            lessons,
            {"held out": held_out},
            out,
            training,
            rank,
        )
    with scratch_folder(out.with_name(f"{out.name}.model")) as folder:
        import_gguf(named(model or Path(BUNDLED)), folder / "model")
        whole = load_model(folder / "model", torch.float32, training.device)
    start = adapter.load(BUNDLED_ADAPTER) if model is None and rank == RANK else None
    return adapt(whole, lessons, {"held out": held_out}, out, training, rank, start=start)
