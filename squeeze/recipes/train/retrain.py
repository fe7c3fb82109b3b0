"""Training of a compressed folder towards the original's outputs: `heal` for factors, `recover` for 2:4.

`heal` trains factors. `recover` trains the weights that pruning kept and leaves every zero in place: all of them, or,
if memory is short, by MaskLoRA (PERP, Zimmer et al. 2023, arXiv 2312.15230). Norms are trained with both. The loss and
the files of a stopped run are distil.py's, and by_block.py's if a model does not fit into memory.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from squeeze.checkpoint.sparse import SparseTensor
from squeeze.errors import SqueezeError
from squeeze.factor.stored import FactorizedForm, FactorLinear
from squeeze.integrations.load_model import load_model
from squeeze.prune.sparse24 import SparseFormat
from squeeze.prune.stored import Sparse24Linear, SparseForm
from squeeze.recipes.train.by_block import by_block
from squeeze.recipes.train.distil import STATE, Becomes, Distillation, Healing, Training, named, replace_tensors
from squeeze.recipes.train.student import Opening, norms
from squeeze.recipes.train.trainer import Steps
from squeeze.system.unchanged import digest, stamps
from squeeze.system.work import discards, work_folder

__all__ = ["MaskLoRA", "MaskedLinear", "heal", "recover"]

# Adam's rate for each nat lost, and bytes of memory for each weight of the original.
_FACTORS = 3e-4, 16.0  # if half of the weights stay
_SPARSE = 3e-4, 21.0
_LOW_RANK = 1.5e-3, 10.0


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
    return _trained(
        Path(original),
        Path(target),
        _FACTOR_OPENING,
        tokens,
        training,
        work="healing",
        blocks=blocks,
        task={"blocks": blocks},
    )


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
    generator = torch.Generator().manual_seed(training.seed)
    opening = Opening(
        SparseForm(),
        lambda block: _open_sparse(block, rank, generator, training.device),
        _close_sparse,
        "has no sparse weights in floating point to retrain",
        *(_SPARSE if rank is None else _LOW_RANK),
    )
    return _trained(
        Path(original),
        Path(target),
        opening,
        tokens,
        training,
        work="recovering",
        task={"rank": rank},
    )


def _trained(
    original: Path,
    target: Path,
    opening: Opening,
    tokens: torch.Tensor,
    training: Training,
    *,
    work: str,
    task: Mapping[str, Any],
    blocks: float = 0.0,
) -> Healing:
    """Train what `opening` opens of `target`, and replace the folder.

    work: suffix of the work folder; task: settings that a stopped run must share.
    """
    started = time.perf_counter()
    settings = {"original": stamps(original), "target": stamps(target), "tokens": digest(tokens), **task}
    settings |= training.described()
    with work_folder(target, work, settings, discards(training.resume, overwrite=True)) as folder:
        run, stored = _training_of(original, target, opening, tokens, training, folder, blocks)
        total, progress = training.steps or 0, training.progress
        tick = (lambda count: progress(f"{work}, loss {run.losses[-1]:.4f}", run.step, total)) if progress else None
        run.go(60 * training.minutes, training.steps, tick)
        replace_tensors(target, folder, stored())
    return Healing(run.step, tuple(run.losses), time.perf_counter() - started)


def _training_of(
    original: Path,
    target: Path,
    opening: Opening,
    tokens: torch.Tensor,
    training: Training,
    work: Path,
    blocks: float,
) -> tuple[Steps, Callable[[], Becomes]]:
    """Return the training, by block if the models do not fit into memory, and a function of what tensors become.

    Raises SqueezeError if there is nothing to train.
    """
    blocked = by_block(original, target, opening, tokens, training, work, blocks)
    return blocked or _in_memory(original, target, opening, tokens, training, work, blocks)


def _in_memory(
    original: Path,
    target: Path,
    opening: Opening,
    tokens: torch.Tensor,
    training: Training,
    work: Path,
    blocks: float,
) -> tuple[Steps, Callable[[], Becomes]]:
    """Return what `_training_of` returns, with both models in memory."""
    student = load_model(target, torch.float32, training.device)
    trained = opening.open(student)
    if len(trained) == len(norms(student)):
        raise SqueezeError(f"{target}: {opening.lacks}")
    teacher = load_model(original, torch.float32, training.device)
    run = Distillation(student, teacher, trained, tokens, training, opening.rate, work / STATE, blocks)
    return run, lambda: named(student, opening.close(student), target)


def _open_factors(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the factors and norms of a model by their names: the norms cost nothing to store again."""
    trainable: dict[str, nn.Parameter] = {}
    for name, module in model.named_modules():
        if isinstance(module, FactorLinear):
            trainable |= {f"{name}.{leaf}": parameter for leaf, parameter in module.named_parameters()}
    return trainable | norms(model)


_FACTOR_OPENING = Opening(
    FactorizedForm(), _open_factors, _open_factors, "has no factors in floating point to heal", *_FACTORS
)


class MaskedLinear(nn.Module):
    """A linear layer y = x (W + L)^T + b that learns its kept weights.

    weight is W, float32 [O, I], trained where the mask is and 0 elsewhere. added is L, of low-rank adapters, or None.
    """

    bias: torch.Tensor | None
    low_rank: torch.Tensor | None

    def __init__(self, sparse: SparseTensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.stored = sparse
        self.register_buffer("mask", sparse.mask, persistent=False)
        self.register_buffer("bias", None if bias is None else bias.float(), persistent=False)
        added = None if sparse.adapters is None else sparse.adapters.dense()
        self.register_buffer("low_rank", added, persistent=False)
        self.weight = nn.Parameter(sparse.sparse())
        mask = sparse.mask  # a hook that held the layer would keep it in memory when nobody else does
        self.weight.register_hook(lambda gradient: gradient * mask.to(gradient.device))  # type: ignore[no-untyped-call]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight if self.low_rank is None else self.weight + self.low_rank, self.bias)

    def merged(self) -> SparseTensor:
        """Return the trained weight with its mask, in its stored type."""
        return _with_values(self.stored, self.weight.detach().cpu())


class MaskLoRA(nn.Module):
    """A linear layer y = x (W + (B A) * M)^T + b that learns B and A of low rank, and so keeps the mask M of W.

    left is B^T, float32 [R, O], 0 at first; right is A, float32 [R, I].
    """

    bias: torch.Tensor | None

    def __init__(self, sparse: SparseTensor, bias: torch.Tensor | None, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        outputs, inputs = sparse.shape
        rank = min(rank, outputs, inputs)
        self.stored = sparse
        self.register_buffer("base", sparse.dequantize(), persistent=False)
        self.register_buffer("mask", sparse.mask, persistent=False)
        self.register_buffer("bias", None if bias is None else bias.float(), persistent=False)
        self.left = nn.Parameter(torch.zeros((rank, outputs)))
        self.right = nn.Parameter(torch.randn((rank, inputs), generator=generator) * inputs**-0.5)

    def change(self) -> torch.Tensor:
        """Return (B A) * M, float32 [O, I]."""
        return (self.left.T @ self.right).masked_fill(~self.get_buffer("mask"), 0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.get_buffer("base") + self.change(), self.bias)

    def merged(self) -> SparseTensor:
        """Return the weight with the learned change and its mask, in its stored type."""
        return _with_values(self.stored, _values(self.stored).float() + self.change().detach().cpu())


def _values(sparse: SparseTensor) -> torch.Tensor:
    assert isinstance(sparse.values, torch.Tensor)
    return sparse.values


def _with_values(sparse: SparseTensor, values: torch.Tensor) -> SparseTensor:
    """Return a sparse tensor with other values under the same mask, in the stored type."""
    values = values.masked_fill(~sparse.mask, 0.0).to(_values(sparse).dtype)
    return SparseTensor(values, sparse.mask, sparse.pattern, sparse.adapters)


def _open_sparse(
    model: nn.Module, rank: int | None, generator: torch.Generator, device: str
) -> dict[str, nn.Parameter]:
    """Replace sparse layers in floating point by trainable ones, and return their parameters and the norms."""
    trained: dict[str, nn.Parameter] = {}
    for name, module in list(model.named_modules()):
        if isinstance(module, Sparse24Linear):
            sparse = module.sparse()
            if isinstance(sparse.values, torch.Tensor):
                bias = None if module.bias is None else module.bias.detach()
                layer = MaskedLinear(sparse, bias) if rank is None else MaskLoRA(sparse, bias, rank, generator)
                model.set_submodule(name, layer.to(device))
                trained |= {f"{name}.{leaf}": value for leaf, value in layer.named_parameters()}
    return trained | norms(model)


def _close_sparse(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the stored tensors of trained layers, and the norms, by their names."""
    values: dict[str, torch.Tensor] = dict(norms(model))
    for name, layer in model.named_modules():
        if isinstance(layer, (MaskedLinear, MaskLoRA)):
            values[f"{name}.sparse_values"] = SparseFormat().tensors("", layer.merged())[".sparse_values"]
    return values
