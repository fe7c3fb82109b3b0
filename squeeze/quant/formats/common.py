"""Checks that every format makes of what it is given to store and to read."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch

from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.errors import FormatError
from squeeze.quant.formats.spec import Grid, QuantizationSpec


@contextmanager
def understood(subject: str) -> Iterator[None]:
    """What reading a description of any shape raises, as a FormatError."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        raise FormatError(f"{subject} does not say how its weights are stored") from None


def only_integers(format: str, spec: QuantizationSpec) -> None:
    """Raises FormatError for what only our own format holds."""
    for prefix, grid in spec.grids.items():
        if grid.codebook is not None:
            raise FormatError(f"{prefix}{format} holds integers, not {grid.codebook}: use the format squeeze")
        if grid.outliers:
            raise FormatError(f"{prefix}{format} cannot keep outlier columns: use the format squeeze")


def only_bits(format: str, spec: QuantizationSpec, held: tuple[int, ...]) -> None:
    """Raises FormatError for integers of other bits than `held`."""
    for grid in spec.grids.values():
        if grid.bits not in held:
            known = f"{', '.join(map(str, held[:-1]))} or {held[-1]}"
            raise FormatError(f"{format} holds codes of {known} bits, not {grid.bits}: the format squeeze does")


def only_plain(format: str, name: str, weight: QuantizedTensor) -> None:
    """Raises FormatError for a weight that is more than integers, scales and zero points."""
    if weight.codebook is not None or weight.outliers is not None or weight.global_scale is not None:
        raise FormatError(f"{name}: {format} holds integers, scales and zero points only: use the format squeeze")


def split_groups(format: str, grid: Grid, inputs: int) -> str | None:
    """What is wrong where `inputs` are not whole groups of a grid."""
    if grid.group_size == -1 or inputs % grid.group_size == 0:
        return None
    return f"{inputs} inputs are not whole groups of {grid.group_size}, which {format} needs"


def only_fitting(name: str, misfit: str | None) -> None:
    """Raises FormatError for what `Format.misfit` says of a module."""
    if misfit:
        raise FormatError(f"{name}: {misfit}")


def scales_as(dtype: torch.dtype, name: str, scales: torch.Tensor) -> torch.Tensor:
    """`scales` in `dtype`. Raises FormatError where that would change them, and so the weights."""
    converted = scales.to(dtype)
    if not torch.equal(converted.to(torch.float64), scales.to(torch.float64)):
        raise FormatError(f"{name}: the scales ({scales.dtype}) are not {dtype} numbers; choose them so")
    return converted.contiguous()


def take(name: str, tensors: Mapping[str, torch.Tensor], leaf: str, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The tensor `name`.`leaf`. Raises FormatError where it is missing or of another dtype."""
    tensor = tensors.get(f"{name}.{leaf}")
    if tensor is None:
        raise FormatError(f"tensor {name}.{leaf} is missing")
    if dtype is not None and tensor.dtype != dtype:
        raise FormatError(f"tensor {name}.{leaf} is {tensor.dtype}, not {dtype}")
    return tensor


def expect(name: str, leaf: str, tensor: torch.Tensor, *shape: int) -> None:
    """Raises FormatError where a tensor has another shape."""
    if tuple(tensor.shape) != shape:
        raise FormatError(f"tensor {name}.{leaf} has shape {list(tensor.shape)}, not {list(shape)}")


def group_size_of(name: str, columns: int, groups: int, size: int) -> int:
    """`size` (-1: all inputs) as QuantizedTensor has it. Raises FormatError where there are not so many groups."""
    inputs = columns if size == -1 else min(size, columns)
    if inputs < 1 or -(-columns // inputs) != groups:
        raise FormatError(f"{name}: {groups} groups of {size} do not make {columns} inputs")
    return inputs


def of_columns(name: str, leaf: str, tensors: Mapping[str, torch.Tensor], weight: QuantizedTensor) -> QuantizedTensor:
    """The weight, where the columns of a group lie apart: the tensor NAME.leaf has the group of each, integers [I]; -1
    where none was written. Each column is then a group of its own, with the scale of its group. Raises FormatError
    where there is no such group."""
    group = tensors.get(f"{name}.{leaf}")
    if group is None or bool((group == -1).all()):
        return weight
    inputs, groups = weight.shape[1], weight.scales.shape[-1]
    expect(name, leaf, group, inputs)
    if torch.equal(group.long(), torch.arange(inputs) // weight.group_size):
        return weight
    if int(group.min()) < 0 or int(group.max()) >= groups:
        raise FormatError(f"{name}: {leaf} names groups that are not there")
    scales = weight.scales[..., group.long()]
    zeros = None if weight.zeros is None else weight.zeros[:, group.long()]
    return replace(weight, scales=scales, zeros=zeros, group_size=1)
