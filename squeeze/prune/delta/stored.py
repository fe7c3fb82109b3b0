"""Fine-tunes as a stored form: matrices are differences from a base's, which the folder names by its hash.

A module has the tensors of prune/sparse24.py for its difference. docs/format.md specifies the form.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.linear import StoredLinear
from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.checkpoint.sparse import SparseTensor
from squeeze.checkpoint.stored import Leaves, Stored, StoredForm, dtype_named, named
from squeeze.engine.writing import Writer
from squeeze.errors import FormatError, ModelError
from squeeze.kernels import sparse24
from squeeze.prune.delta.base import BaseWeights
from squeeze.prune.delta.method import DeltaTensor
from squeeze.prune.sparse24 import LEAVES, SparseFormat
from squeeze.quant.linear import QuantLinear

__all__ = ["METHOD", "DeltaForm", "DeltaLinear", "make_writer"]

_FORMAT = SparseFormat()

_Product = Callable[[torch.Tensor], torch.Tensor]  # [R, I] to [R, O]


class DeltaLinear(StoredLinear[_Product]):
    """y = x B^T + x D^T + b, with the weight B of a base that models may share, and the model's own difference D.

    Codes of D on a grid of integers stay codes, with that of 0 outside the mask, and are multiplied as in QuantLinear.
    Floats are expanded once, on a CPU.
    """

    known_leaves = LEAVES
    by_dtype = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        stored: Mapping[str, torch.Tensor],
        bias: torch.Tensor | None = None,
        name: str = "",
    ) -> None:
        """Hold the buffers of a difference.

        Args:
            in_features: I.
            out_features: O.
            stored: tensors of the difference, by the leaves of SparseFormat.
            bias: [O], or None.
            name: of the module, in errors.
        """
        super().__init__(in_features, out_features, stored, bias, name)
        self.register_buffer("base", None, persistent=False)

    def attach(self, base: torch.Tensor) -> None:
        """Attach the base's weight [O, I], which is not copied. Raises FormatError if it has another shape."""
        if tuple(base.shape) != (self.out_features, self.in_features):
            wanted = f"{self.out_features} x {self.in_features}"
            raise FormatError(f"{self._name}: expected a base of {wanted}, got {' x '.join(map(str, base.shape))}")
        self.base = base

    def delta(self) -> SparseTensor:
        """Return the decoded difference. Raises FormatError or DamagedError if the buffers are invalid."""
        delta = _FORMAT.weight(self._name, named(self._name, self.stored()))
        self._check_shape(delta.shape)
        return delta

    def base_weight(self) -> torch.Tensor:
        """Return the base's weight [O, I]. Raises FormatError if none is attached."""
        if (base := self._buffers["base"]) is None:
            raise FormatError(f"{self._name}: has no base yet: call `attach`")
        return base

    @property
    def weight_dtype(self) -> torch.dtype:
        return self.base_weight().dtype

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return self.delta().dequantize().add_(self.base_weight()).to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._check(x)
        y = functional.linear(x, self.base_weight().to(x.dtype), self._bias_as(x.dtype))
        return y + self.product(x)

    def prepare(self, dtype: torch.dtype) -> _Product:
        delta, device = self.delta(), self.get_buffer("sparse_values").device
        if (codes := _with_zeros(delta)) is not None:
            return QuantLinear.of(codes).to(device)
        return sparse24.prepare(delta, dtype, device).multiply

    def multiply(self, rows: torch.Tensor, prepared: _Product) -> torch.Tensor:
        return prepared(rows)


def _with_zeros(delta: SparseTensor) -> QuantizedTensor | None:
    """Return the difference as codes of all weights, with that of 0 outside the mask; None for floats and codebooks."""
    values = delta.values
    if not isinstance(values, QuantizedTensor) or values.codebook is not None or delta.adapters is not None:
        return None
    zero = torch.tensor(1 << (values.bits - 1), dtype=torch.uint8)
    if values.zeros is not None:
        zero = values.zeros[:, torch.arange(delta.shape[1]) // values.group_size]
    return replace(values, codes=torch.where(delta.mask, values.codes, zero))


METHOD = "squeeze-delta"  # of the quantization_config
_VERSION = 1


class DeltaForm(StoredForm):
    """The form of folders that `squeeze delta` wrote."""

    method = METHOD
    leaves = LEAVES
    mark = "sparse_mask"
    version = _VERSION
    what = "differences from a base"

    def open(self, checkpoint: Checkpoint, base: Path | str | None = None) -> Stored | None:
        if (described := self.described(checkpoint)) is None:
            return None
        weights, dtype = BaseWeights.of(checkpoint.folder, described, base), dtype_named(described.get("dtype"))

        def weight(module: str, tensors: dict[str, torch.Tensor]) -> DeltaTensor:
            delta, matrix = _FORMAT.weight(module, tensors), weights.matrix(module, described)
            if delta.shape != tuple(matrix.shape):
                raise FormatError(
                    f"{module}: expected a difference of shape {list(matrix.shape)}, got {list(delta.shape)}"
                )
            return DeltaTensor(matrix, delta)

        return Stored(self.modules_of(checkpoint.files), dtype, weight)

    def weight(self, module: str, leaves: Leaves) -> DeltaTensor:
        raise ModelError(f"{module}: transformers merges it with others, without its base: run `squeeze densify` first")

    def layer(self, module: str, shape: tuple[int, int], leaves: Leaves, bias: torch.Tensor | None) -> nn.Module:
        if "sparse_values" not in leaves or "sparse_grid" not in leaves:
            raise FormatError(f"{module}: expected sparse_values and sparse_grid, got {', '.join(leaves)}")
        return DeltaLinear(shape[1], shape[0], leaves, bias, module)


def make_writer(base: BaseWeights, transposed: list[str], dtype: torch.dtype) -> Writer:
    """Return the writer of differences from a base.

    Args:
        base: the base.
        transposed: modules whose weights the checkpoint stores as [I, O].
        dtype: of the dense weights.
    """

    def tensors(module: str, tensor: DeltaTensor, transposed: bool) -> dict[str, torch.Tensor]:
        return _FORMAT.tensors(module, tensor.delta)

    def config(excluded: list[str]) -> dict[str, Any]:
        described = {
            "quant_method": METHOD,
            "version": _VERSION,
            "base": {"name": base.path.resolve().name, "sha256": list(base.base.weights)},
            "transposed": transposed,
            "ignored": excluded,
            "dtype": str(dtype).removeprefix("torch."),
        }
        return {"quantization_config": described}

    return Writer("delta", tensors, config, measured=True)
