"""Sparse weights as a stored form: the layer that multiplies by them, and their dense weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.sparse import SparseTensor
from squeeze.checkpoint.stored import Leaves, Stored, StoredForm, dtype_named, named
from squeeze.errors import FormatError
from squeeze.prune.linear import Sparse24Linear
from squeeze.prune.sparse24 import LEAVES, METHOD, SparseFormat

__all__ = ["SparseForm"]

_FORMAT = SparseFormat()


class SparseForm(StoredForm):
    """Folders that `squeeze prune` wrote."""

    method = METHOD
    leaves = LEAVES
    mark = "sparse_mask"

    def check(self, described: Mapping[str, Any]) -> None:
        _FORMAT.check(described)

    def open(self, checkpoint: Checkpoint, base: Path | str | None = None) -> Stored | None:
        described = checkpoint.config.get("quantization_config")
        if not isinstance(described, dict) or described.get("quant_method") != METHOD:
            return None
        self.check(described)
        return Stored(self.modules_of(checkpoint.files), dtype_named(described.get("dtype")), _FORMAT.weight)

    def weight(self, module: str, leaves: Leaves) -> SparseTensor:
        return _FORMAT.weight(module, named(module, leaves))

    def layer(self, module: str, shape: tuple[int, int], leaves: Leaves, bias: torch.Tensor | None) -> nn.Module:
        if "sparse_values" not in leaves or "sparse_grid" not in leaves:
            raise FormatError(f"{module}: parts of its sparse weight are missing")
        return Sparse24Linear(shape[1], shape[0], leaves, bias, module)
