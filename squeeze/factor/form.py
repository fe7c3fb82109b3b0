"""The base of factorised forms of a matrix: named tensors, a product with activations, a dense matrix.

A tensor may itself be quantised; it is then stored as in quant/formats/squeeze.py, with names joined by `_`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import torch
from torch.nn import functional

from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.errors import FormatError
from squeeze.quant.formats.squeeze import SqueezeFormat
from squeeze.quant.linear import QuantLinear

__all__ = ["Form", "Matrix", "as_dense", "mask_of", "packed_mask", "product"]

Matrix = torch.Tensor | QuantizedTensor | QuantLinear
_QUANTISED = SqueezeFormat()


def as_dense(matrix: Matrix, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return matrix.to(dtype) if isinstance(matrix, torch.Tensor) else matrix.dequantize(dtype)


def product(x: torch.Tensor, matrix: Matrix) -> torch.Tensor:
    """Multiply x [T, I] by the transpose of a matrix [O, I], to [T, O]."""
    if isinstance(matrix, torch.Tensor):
        matrix = matrix if matrix.dtype == x.dtype else matrix.to(x.dtype)
        if len(x) == 1 and x.device.type == "cpu" and x.dtype in (torch.bfloat16, torch.float16):
            return torch.mv(matrix, x[0])[None]  # up to twice as fast as linear
        return functional.linear(x, matrix)
    layer = matrix if isinstance(matrix, QuantLinear) else QuantLinear.of(matrix)
    product: torch.Tensor = layer(x)
    return product


@dataclass(frozen=True)
class Form(ABC):
    """A factorised matrix [O, I].

    The fields of a subclass are its tensors: floats, or quantised if `quantisable` names them. A tuple of tensors is
    stored as NAME0, NAME1, ...
    """

    kind: ClassVar[str]
    leaves: ClassVar[tuple[str, ...]]
    quantisable: ClassVar[tuple[str, ...]] = ()
    numbered_leaf: ClassVar[str | None] = None  # the field that is a tuple
    optional: ClassVar[tuple[str, ...]] = ()
    ranked: ClassVar[str] = "other"  # the field [R, I] of a product of two factors, or the form that has one

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """The shape (O, I)."""

    @abstractmethod
    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply x [T, I] by the transpose of the matrix, to [T, O] in the dtype of x."""

    @abstractmethod
    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return the dense matrix [O, I], computed in float32 and rounded once."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the stored tensors, by the names in `leaves`."""
        stored_tensors: dict[str, torch.Tensor] = {}
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, tuple):
                stored_tensors |= {f"{entry.name}{i}": part for i, part in enumerate(value)}
            elif isinstance(value, QuantizedTensor):
                stored = _QUANTISED.tensors(entry.name, value, value.scales.dtype)
                stored_tensors |= {name.replace(".", "_"): tensor for name, tensor in stored.items()}
            elif value is not None:
                stored_tensors[entry.name] = value
        return stored_tensors

    @property
    def stored_bits(self) -> int:
        """The bits of all stored tensors."""
        return 8 * sum(tensor.nbytes for tensor in self.tensors().values())

    @property
    def rank(self) -> int | None:
        """The rank R of a product of two factors; None for other forms."""
        factor = getattr(self, self.ranked, None)
        if isinstance(factor, Form):
            return factor.rank
        if isinstance(factor, QuantLinear):
            return int(factor.out_features)
        return None if factor is None else int(factor.shape[0])

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor], as_layers: bool = False) -> Self:
        """Return the form of stored tensors.

        Args:
            tensors: by name, as `tensors` returns them.
            as_layers: hold quantised tensors as layers that multiply by them.

        Raises:
            FormatError: shapes are inconsistent.
        """
        values: dict[str, Any] = {}
        for entry in fields(cls):
            if entry.name == cls.numbered_leaf:
                cores = [tensors[f"{entry.name}{i}"] for i in range(len(tensors)) if f"{entry.name}{i}" in tensors]
                values[entry.name] = tuple(cores)
            elif entry.name in tensors:
                values[entry.name] = tensors[entry.name]
            elif f"{entry.name}_codes" in tensors:
                values[entry.name] = _quantised(entry.name, tensors, as_layers)
        try:
            form = cls(**values)
            form.check()
        except (TypeError, IndexError, ValueError, AttributeError) as error:
            raise FormatError(f"the tensors of a {cls.kind} matrix do not fit together: {error}") from None
        return form

    def check(self) -> None:  # noqa: B027  most have nothing to check
        """Raise ValueError if the shapes of the tensors are inconsistent."""


def _quantised(name: str, tensors: Mapping[str, torch.Tensor], as_layers: bool) -> QuantizedTensor | QuantLinear:
    leaves = {
        leaf: tensors[f"{name}_{leaf}"] for leaf in _QUANTISED.leaves if tensors.get(f"{name}_{leaf}") is not None
    }
    if as_layers:
        outputs, inputs = (int(size) for size in leaves["grid"].tolist()[:2])
        return QuantLinear(inputs, outputs, leaves, None, name)
    return _QUANTISED.stored(name, {f"{name}.{leaf}": tensor for leaf, tensor in leaves.items()})


def packed_mask(mask: torch.Tensor) -> torch.Tensor:
    """Pack bool [N] into uint8 [ceil(N / 8)], the first in the lowest bit."""
    padded = functional.pad(mask.to(torch.uint8), (0, -len(mask) % 8)).view(-1, 8)
    weights = torch.tensor([1 << i for i in range(8)], dtype=torch.uint8, device=mask.device)
    return (padded * weights).sum(1).to(torch.uint8)


def mask_of(packed: torch.Tensor, count: int) -> torch.Tensor:
    """Unpack a mask, bool [count]. Raises ValueError if it has another number of bytes."""
    if packed.dtype != torch.uint8 or packed.numel() != -(-count // 8):
        raise ValueError(f"expected {-(-count // 8)} bytes for a mask of {count}, got {packed.numel()}")
    bits = packed[:, None] >> torch.arange(8, device=packed.device, dtype=torch.uint8)
    return (bits & 1).bool().flatten()[:count]
