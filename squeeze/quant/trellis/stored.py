"""Trellis codes as a stored form: the tensors of a weight (see docs/format.md), and the layer that multiplies by
them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.linear import StoredLinear
from squeeze.checkpoint.stored import Leaves, Stored, StoredForm, dtype_named
from squeeze.engine.writing import Writer
from squeeze.errors import FormatError
from squeeze.kernels import trellis
from squeeze.kernels.trellis import cpu
from squeeze.numerics.hadamard import rotate_blocks

__all__ = [
    "LEAST_RATE",
    "LEAVES",
    "METHOD",
    "MOST_RATE",
    "ROTATION",
    "TrellisForm",
    "TrellisLinear",
    "TrellisTensor",
    "make_writer",
    "read",
    "tensors_of",
]

LEAVES = ("trellis_codes", "trellis_scales", "trellis_grid")
ROTATION = 128  # most inputs that are rotated together
LEAST_RATE, MOST_RATE = 16, 64  # sixteenths of a bit


@dataclass(frozen=True)
class TrellisTensor:
    """A weight [O, I] whose inputs are rotated by Hadamard matrices in blocks of at most ROTATION.

    Attributes:
        codes: trellis codes of the columns, uint8 [I, bytes].
        scales: a scale for each output [O], in the dtype in which it is stored.
        rate: sixteenths of a bit for each weight.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    rate: int

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (O, I)."""
        return len(self.scales), len(self.codes)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return the dense weight [O, I], computed in float32 and rounded once to `dtype`."""
        levels = trellis.decode(self.codes, len(self.scales), self.rate)
        return rotate_blocks(levels * self.scales.to(torch.float32)[:, None], ROTATION).to(dtype)

    @property
    def stored_bits(self) -> int:
        """The bits of codes and scales."""
        return 8 * (self.codes.nbytes + self.scales.nbytes)


def tensors_of(module: str, weight: TrellisTensor) -> dict[str, torch.Tensor]:
    """Return the tensors that a checkpoint stores of a module's weight, by name."""
    grid = torch.tensor([*weight.shape, weight.rate])
    return dict(zip((f"{module}.{leaf}" for leaf in LEAVES), (weight.codes, weight.scales, grid), strict=True))


def read(module: str, leaves: Mapping[str, torch.Tensor]) -> TrellisTensor:
    """Return the weight of a module from its tensors by leaf. Raises FormatError if they are missing or
    inconsistent."""
    for leaf in LEAVES:
        if leaf not in leaves:
            raise FormatError(f"{module}: has no {leaf}")
    codes, scales, grid = (leaves[leaf] for leaf in LEAVES)
    if grid.dtype != torch.int64 or grid.shape != (3,):
        raise FormatError(f"{module}: expected a trellis_grid of three integers")
    outputs, inputs, rate = (int(value) for value in grid.tolist())
    if not LEAST_RATE <= rate <= MOST_RATE:
        raise FormatError(f"{module}: expected a rate of {LEAST_RATE} to {MOST_RATE} sixteenths of a bit, got {rate}")
    if scales.shape != (outputs,) or scales.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise FormatError(f"{module}: expected trellis_scales of {outputs} floats")
    if codes.dtype != torch.uint8 or codes.shape != (inputs, trellis.column_bytes(outputs, rate)):
        raise FormatError(f"{module}: expected trellis_codes of {inputs} columns of {outputs} rows")
    return TrellisTensor(codes, scales, rate)


_FEW_ROWS = 8  # on the CPU, more rows than these are multiplied by the expanded weight


@dataclass(frozen=True)
class _Runtime:
    """The prepared weight; `codes` are padded for the CPU's kernel, None on a GPU."""

    tensor: TrellisTensor
    codes: np.ndarray | None


class TrellisLinear(StoredLinear[_Runtime]):
    """y = x W^T + b with trellis codes: on the CPU they are decoded during the product of few rows.

    Inputs are rotated instead of the weight.
    """

    known_leaves = LEAVES
    differentiable = False
    trellis_scales: torch.Tensor

    @property
    def weight_dtype(self) -> torch.dtype:
        return self.trellis_scales.dtype

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return self.prepared().tensor.dequantize(dtype)

    def prepare(self, dtype: torch.dtype) -> _Runtime:
        tensor = read(self._name, self.stored())
        return _Runtime(tensor, cpu.padded(tensor.codes) if tensor.codes.device.type == "cpu" else None)

    def multiply(self, rows: torch.Tensor, prepared: _Runtime) -> torch.Tensor:
        tensor, x = prepared.tensor, rotate_blocks(rows.to(torch.float32), ROTATION)
        if prepared.codes is not None and len(x) <= _FEW_ROWS:
            y = cpu.matmul(x.detach(), prepared.codes, self.out_features, tensor.rate, torch.get_num_threads())
        else:
            y = functional.linear(x, trellis.decode(tensor.codes, self.out_features, tensor.rate))
        return (y * tensor.scales.to(torch.float32)).to(rows.dtype)


METHOD = "squeeze-trellis"  # of the quantization_config
_VERSION = 1


class TrellisForm(StoredForm):
    """The form of folders that the method trellis wrote."""

    method = METHOD
    leaves = LEAVES
    mark = "trellis_codes"
    version = _VERSION
    what = "trellis codes"

    def open(self, checkpoint: Checkpoint, base: Path | str | None = None) -> Stored | None:
        if (described := self.described(checkpoint)) is None:
            return None
        dtype = dtype_named(described.get("dtype"))

        def weight(module: str, tensors: dict[str, torch.Tensor]) -> TrellisTensor:
            return read(module, {name.removeprefix(f"{module}."): t for name, t in tensors.items()})

        return Stored(self.modules_of(checkpoint.files), dtype, weight)

    def weight(self, module: str, leaves: Leaves) -> TrellisTensor:
        return read(module, leaves)

    def layer(self, module: str, shape: tuple[int, int], leaves: Leaves, bias: torch.Tensor | None) -> nn.Module:
        outputs, inputs = shape
        for leaf, wanted in (("trellis_codes", inputs), ("trellis_scales", outputs)):
            if leaf not in leaves or len(leaves[leaf]) != wanted:
                raise FormatError(f"{module}: expected {leaf} of {outputs} outputs and {inputs} inputs")
        return TrellisLinear(inputs, outputs, leaves, bias, module)


def make_writer(dtype: torch.dtype) -> Writer:
    """Return the writer of trellis codes. `dtype` is that of the dense weights."""

    def tensors(module: str, tensor: TrellisTensor, transposed: bool) -> dict[str, torch.Tensor]:
        return tensors_of(module, tensor)

    def config(excluded: list[str]) -> dict[str, Any]:
        named = str(dtype).removeprefix("torch.")
        return {
            "quantization_config": {"quant_method": METHOD, "version": _VERSION, "ignored": excluded, "dtype": named}
        }

    return Writer("squeeze", tensors, config, biases=True)
