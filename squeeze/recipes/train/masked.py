"""Sparse weights in floating point as a student: layers that keep a mask, all kept weights or by MaskLoRA.

MaskLoRA is from PERP (Zimmer et al. 2023, arXiv 2312.15230).
"""

import torch
from torch import nn
from torch.nn import functional

from squeeze.checkpoint.sparse import SparseTensor
from squeeze.prune.sparse24 import SparseFormat
from squeeze.prune.stored import Sparse24Linear, SparseForm
from squeeze.recipes.train.student import Opening, norms

__all__ = ["MaskLoRA", "MaskedLinear", "sparse_opening"]

# Adam's rate for each nat lost, and bytes of memory for each weight of the original.
_SPARSE = 3e-4, 21.0
_LOW_RANK = 1.5e-3, 10.0


def sparse_opening(rank: int | None, seed: int, device: str) -> Opening:
    """Return how the kept weights of a sparse folder are trained: all of them, or by adapters of a rank."""
    generator = torch.Generator().manual_seed(seed)
    return Opening(
        SparseForm(),
        lambda block, names: _open_sparse(block, rank, generator, device),
        _close_sparse,
        "has no sparse weights in floating point to retrain",
        *(_SPARSE if rank is None else _LOW_RANK),
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
