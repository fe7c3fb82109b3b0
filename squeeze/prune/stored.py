"""Sparse weights as a stored form: our own, and two kinds of compressed-tensors, which are only expanded.

The latter are sparse-24-bitmask and marlin-24, which compressed-tensors wrote and no longer decompresses (legacy.py).
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.sparse import SparseTensor
from squeeze.checkpoint.stored import Leaves, Stored, StoredForm, dtype_named, named
from squeeze.errors import FormatError
from squeeze.prune import legacy
from squeeze.prune.linear import Sparse24Linear
from squeeze.prune.sparse24 import LEAVES, METHOD, SparseFormat

__all__ = ["SparseForm"]

_FORMAT = SparseFormat()
_BITMASK = ("compressed", "bitmask", "shape")
_MARLIN = ("weight_packed", "meta", "scale_packed")
_CONFIGS = ("quantization_config", "compression_config", "sparsity_config")


class SparseForm(StoredForm):
    """Folders that `squeeze prune` wrote; `open` reads the two of compressed-tensors too."""

    method = METHOD
    leaves = LEAVES
    mark = "sparse_mask"

    def check(self, described: Mapping[str, Any]) -> None:
        _FORMAT.check(described)

    def open(self, checkpoint: Checkpoint, base: Path | str | None = None) -> Stored | None:
        modules = _modules(checkpoint.files)
        if not modules:
            return None
        described = [config for key in _CONFIGS if isinstance(config := checkpoint.config.get(key), dict)]
        dtype, bits = dtype_named(_dtype(described, checkpoint.config)), _bits(described)
        return Stored(modules, dtype, lambda module, tensors: _weight(module, tensors, bits))

    def weight(self, module: str, leaves: Leaves) -> SparseTensor:
        return _FORMAT.weight(module, named(module, leaves))

    def layer(self, module: str, shape: tuple[int, int], leaves: Leaves, bias: torch.Tensor | None) -> nn.Module:
        if "sparse_values" not in leaves or "sparse_grid" not in leaves:
            raise FormatError(f"{module}: parts of its sparse weight are missing")
        return Sparse24Linear(shape[1], shape[0], dict(leaves), bias)


def _modules(names: Iterable[str]) -> dict[str, list[str]]:
    """The leaves of every sparse module, by its name."""
    leaves_of: dict[str, list[str]] = {}
    for name in names:
        module, _, leaf = name.rpartition(".")
        if leaf in (*LEAVES, *_BITMASK, *_MARLIN):
            leaves_of.setdefault(module, []).append(leaf)
    marks = ("sparse_mask", "bitmask", "meta")
    return {module: leaves for module, leaves in leaves_of.items() if any(mark in leaves for mark in marks)}


def _weight(module: str, tensors: dict[str, torch.Tensor], bits: int) -> SparseTensor:
    if f"{module}.sparse_mask" in tensors:
        return _FORMAT.weight(module, tensors)
    if f"{module}.bitmask" in tensors:
        return legacy.bitmask(module, tensors)
    return legacy.marlin(module, tensors, bits)


def _dtype(described: list[Any], config: dict[str, Any]) -> str:
    dtype = next(
        (table["dtype"] for table in described if table.get("quant_method") == METHOD and "dtype" in table), None
    )
    return str(dtype or config.get("dtype") or config.get("torch_dtype") or "bfloat16")


def _bits(described: list[Any]) -> int:
    """Of marlin-24's codes, by the first config group."""
    for config in described:
        for group in (config.get("config_groups") or {}).values():
            return int((group.get("weights") or {}).get("num_bits", 4))
    return 4
