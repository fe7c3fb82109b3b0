"""Fine-tunes as a stored form: matrices are differences from a base's, which the folder names by its hash.

A module has the tensors that prune/sparse24.py makes of its difference. docs/format.md specifies it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.stored import Leaves, Stored, StoredForm, dtype_named
from squeeze.engine.pipeline import Writer
from squeeze.errors import FormatError, ModelError, printable
from squeeze.prune.delta.base import BaseWeights
from squeeze.prune.delta.linear import DeltaLinear
from squeeze.prune.delta.method import DeltaTensor
from squeeze.prune.sparse24 import LEAVES, SparseFormat

__all__ = ["METHOD", "DeltaForm", "make_writer"]

METHOD = "squeeze-delta"  # of the quantization_config
_VERSION = 1
_FORMAT = SparseFormat()


class DeltaForm(StoredForm):
    """Folders that `squeeze delta` wrote."""

    method = METHOD
    leaves = LEAVES
    mark = "sparse_mask"

    def check(self, described: Mapping[str, Any]) -> None:
        if described.get("version") != _VERSION:
            version = printable(repr(described.get("version")))
            raise FormatError(f"version {version} of differences from a base is unknown: use a newer squeeze")

    def open(self, checkpoint: Checkpoint, base: Path | str | None = None) -> Stored | None:
        described = checkpoint.config.get("quantization_config")
        if not isinstance(described, dict) or described.get("quant_method") != METHOD:
            return None
        self.check(described)
        weights, dtype = BaseWeights.of(checkpoint.folder, described, base), dtype_named(described.get("dtype"))

        def weight(module: str, tensors: dict[str, torch.Tensor]) -> DeltaTensor:
            delta, matrix = _FORMAT.weight(module, tensors), weights.matrix(module, described)
            if delta.shape != tuple(matrix.shape):
                raise FormatError(
                    f"{module}: a difference of shape {list(delta.shape)} is not one from {list(matrix.shape)}"
                )
            return DeltaTensor(matrix, delta)

        return Stored(self.modules_of(checkpoint.files), dtype, weight)

    def weight(self, module: str, leaves: Leaves) -> DeltaTensor:
        raise ModelError(
            f"{module}: transformers merges it with others, and its base is not known there: use `squeeze densify`"
        )

    def layer(self, module: str, shape: tuple[int, int], leaves: Leaves, bias: torch.Tensor | None) -> nn.Module:
        if "sparse_values" not in leaves or "sparse_grid" not in leaves:
            raise FormatError(f"{module}: parts of its difference are missing")
        return DeltaLinear(shape[1], shape[0], leaves, bias, module)


def make_writer(base: BaseWeights, transposed: list[str], dtype: torch.dtype) -> Writer:
    """transposed: modules whose weights the checkpoint has as [I, O]. dtype: of the dense weights."""

    def tensors(module: str, tensor: DeltaTensor, transposed: bool) -> dict[str, torch.Tensor]:
        return _FORMAT.tensors(module, tensor.delta)

    def config(left: list[str]) -> dict[str, Any]:
        described = {
            "quant_method": METHOD,
            "version": _VERSION,
            "base": {"name": base.path.resolve().name, "sha256": list(base.base.weights)},
            "transposed": transposed,
            "ignored": left,
            "dtype": str(dtype).removeprefix("torch."),
        }
        return {"quantization_config": described}

    return Writer("delta", tensors, config, measured=True)
