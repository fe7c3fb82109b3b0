"""Recovery: a pruned model is trained to give the original's distribution again, and every zero stays one.

All weights kept are trained, or, where memory is short, MaskLoRA is (PERP, Zimmer et al. 2023, arXiv 2312.15230): a
weight W with mask M is W + (B A) * M, with B and A of low rank, so the sum keeps the mask and is stored as W was. The
norms are trained, too. What is learned and how a run is saved is recipes/train/distil.py's.
"""

import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from squeeze.checkpoint.sparse import SparseTensor
from squeeze.prune.sparse24 import SparseFormat
from squeeze.prune.stored import Sparse24Linear, SparseForm
from squeeze.recipes.train.distil import Healing, Training, replace_tensors
from squeeze.recipes.train.opened import training_of
from squeeze.recipes.train.student import Opening, norms
from squeeze.system.unchanged import digest, stamps
from squeeze.system.work import discards, work_folder

__all__ = ["MaskLoRA", "MaskedLinear", "recover"]

_RATE, _LOW_RANK_RATE = 3e-4, 1.5e-3  # for each nat lost
_LACKS = "has no sparse weights in floating point to retrain"
_BYTES, _LOW_RANK_BYTES = 21.0, 10.0  # of memory for each weight of the original


class MaskedLinear(nn.Module):
    """y = x (W + L)^T + b. weight: W, float32 [O, I], which is trained where the mask is, and 0 elsewhere; added: L, of
    adapters, None where there are none."""

    bias: torch.Tensor | None
    added: torch.Tensor | None

    def __init__(self, sparse: SparseTensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.stored = sparse
        self.register_buffer("mask", sparse.mask, persistent=False)
        self.register_buffer("bias", None if bias is None else bias.float(), persistent=False)
        added = None if sparse.adapters is None else sparse.adapters.dense()
        self.register_buffer("added", added, persistent=False)
        self.weight = nn.Parameter(sparse.sparse())
        mask = sparse.mask  # a hook that held the layer would keep it in memory when nobody else does
        self.weight.register_hook(lambda gradient: gradient * mask.to(gradient.device))  # type: ignore[no-untyped-call]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight if self.added is None else self.weight + self.added, self.bias)

    def merged(self) -> SparseTensor:
        """The weight as it was stored, with what was learned, of the same mask."""
        return _with_values(self.stored, self.weight.detach().cpu())


class MaskLoRA(nn.Module):
    """y = x (W + (B A) * M)^T + b. left: B^T, float32 [R, O], 0 at first; right: A, [R, I]."""

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
        """(B A) * M, float32 [O, I]."""
        return (self.left.T @ self.right).masked_fill(~self.get_buffer("mask"), 0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.get_buffer("base") + self.change(), self.bias)

    def merged(self) -> SparseTensor:
        """As MaskedLinear.merged."""
        return _with_values(self.stored, _values(self.stored).float() + self.change().detach().cpu())


def _values(sparse: SparseTensor) -> torch.Tensor:
    assert isinstance(sparse.values, torch.Tensor)
    return sparse.values


def _with_values(sparse: SparseTensor, values: torch.Tensor) -> SparseTensor:
    """Other values, in the type in which they are stored."""
    values = values.masked_fill(~sparse.mask, 0.0).to(_values(sparse).dtype)
    return SparseTensor(values, sparse.mask, sparse.pattern, sparse.adapters)


def recover(
    original: Path | str, target: Path | str, tokens: torch.Tensor, training: Training, rank: int | None = None
) -> Healing:
    """Retrain a pruned folder in place, which is replaced when all is done; a run that was stopped goes on.

    tokens: [N, L] sequences, in random order. rank: of what is added to each matrix; None trains all weights kept,
    which learns faster and takes three times their memory besides. Raises SqueezeError where a run that was stopped was
    of other settings, and where the folder has no sparse weights in floating point.
    """
    original, target = Path(original), Path(target)
    started = time.perf_counter()
    generator = torch.Generator().manual_seed(training.seed)
    takes = (_RATE, _BYTES) if rank is None else (_LOW_RANK_RATE, _LOW_RANK_BYTES)
    opening = Opening(
        SparseForm(), lambda block: _parameters(block, rank, generator, training.device), _closed, _LACKS, *takes
    )
    task = {"original": stamps(original), "target": stamps(target), "tokens": digest(tokens), "rank": rank}
    with work_folder(
        target, "recovering", task | training.described(), discards(training.resume, overwrite=True)
    ) as work:
        run, stored = training_of(original, target, opening, tokens, training, work)
        total, progress = training.steps or 0, training.progress
        tick = (lambda count: progress(f"recovery, loss {run.losses[-1]:.4f}", run.step, total)) if progress else None
        run.go(60 * training.minutes, training.steps, tick)
        replace_tensors(target, work, stored())
    return Healing(run.step, tuple(run.losses), time.perf_counter() - started)


def _parameters(model: nn.Module, rank: int | None, generator: torch.Generator, device: str) -> dict[str, nn.Parameter]:
    """Of layers that can be trained, which take the place of sparse ones, and of norms."""
    layers = _opened(model, rank, generator, device)
    trained = {f"{name}.{leaf}": value for name, layer in layers.items() for leaf, value in layer.named_parameters()}
    return trained | norms(model)


def _closed(model: nn.Module) -> dict[str, torch.Tensor]:
    """What sparse layers and norms are stored as."""
    values: dict[str, torch.Tensor] = dict(norms(model))
    for name, layer in model.named_modules():
        if isinstance(layer, (MaskedLinear, MaskLoRA)):
            values[f"{name}.sparse_values"] = SparseFormat().tensors("", layer.merged())[".sparse_values"]
    return values


def _opened(
    model: nn.Module, rank: int | None, generator: torch.Generator, device: str
) -> dict[str, MaskedLinear | MaskLoRA]:
    """Puts a layer that can be trained in the place of every sparse one in floating point."""
    layers: dict[str, MaskedLinear | MaskLoRA] = {}
    for name, module in list(model.named_modules()):
        if isinstance(module, Sparse24Linear):
            sparse = module.sparse()
            if isinstance(sparse.values, torch.Tensor):
                bias = None if module.bias is None else module.bias.detach()
                layer = MaskedLinear(sparse, bias) if rank is None else MaskLoRA(sparse, bias, rank, generator)
                layers[name] = layer.to(device)
                model.set_submodule(name, layers[name])
    return layers
