"""Checks that formats share, of weights to store and of tensors to read."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch

from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.errors import FormatError
from squeeze.quant.formats.spec import Grid, QuantizationSpec


@contextmanager
def understood(subject: str) -> Iterator[None]:
    """Turn errors of reading an invalid description into a FormatError."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        raise FormatError(f"{subject} does not say how its weights are stored") from None


def only_integers(format: str, spec: QuantizationSpec) -> None:
    """Raise FormatError if a grid needs our own format: a codebook or outliers."""
    for prefix, grid in spec.grids.items():
        if grid.codebook is not None:
            raise FormatError(f"{prefix}{format} stores integers, got {grid.codebook}: use the format squeeze")
        if grid.outliers:
            raise FormatError(f"{prefix}{format} cannot store outlier columns: use the format squeeze")


def only_bits(format: str, spec: QuantizationSpec, supported: tuple[int, ...]) -> None:
    """Raise FormatError for integers of other bits than `supported`."""
    for grid in spec.grids.values():
        if grid.bits not in supported:
            known = f"{', '.join(map(str, supported[:-1]))} or {supported[-1]}"
            raise FormatError(f"the format {format} stores {known} bits, got {grid.bits}: use the format squeeze")


def only_plain(format: str, name: str, weight: QuantizedTensor) -> None:
    """Raise FormatError if a weight has more than integers, scales and zero points."""
    if weight.codebook is not None or weight.outliers is not None or weight.global_scale is not None:
        raise FormatError(f"{name}: the format {format} has no codebooks or outliers: use the format squeeze")


def split_groups(format: str, grid: Grid, inputs: int) -> str | None:
    """Return why `inputs` are not whole groups of a grid; None if they are."""
    if grid.group_size == -1 or inputs % grid.group_size == 0:
        return None
    return f"{inputs} inputs are not whole groups of {grid.group_size}, which {format} needs"


def only_fitting(name: str, misfit: str | None) -> None:
    """Raise FormatError with a module's misfit, if there is one."""
    if misfit:
        raise FormatError(f"{name}: {misfit}")


def scales_as(dtype: torch.dtype, name: str, scales: torch.Tensor) -> torch.Tensor:
    """Return scales in another dtype. Raises FormatError if that changes them."""
    converted = scales.to(dtype)
    if not torch.equal(converted.to(torch.float64), scales.to(torch.float64)):
        raise FormatError(f"{name}: the scales ({scales.dtype}) cannot be stored as {dtype} without a change")
    return converted.contiguous()


def take(name: str, tensors: Mapping[str, torch.Tensor], leaf: str, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return the tensor NAME.LEAF. Raises FormatError if it is missing or has another dtype."""
    tensor = tensors.get(f"{name}.{leaf}")
    if tensor is None:
        raise FormatError(f"tensor {name}.{leaf} is missing")
    if dtype is not None and tensor.dtype != dtype:
        raise FormatError(f"tensor {name}.{leaf}: expected {dtype}, got {tensor.dtype}")
    return tensor


def expect(name: str, leaf: str, tensor: torch.Tensor, *shape: int) -> None:
    """Raise FormatError if a tensor has another shape."""
    if tuple(tensor.shape) != shape:
        raise FormatError(f"tensor {name}.{leaf}: expected shape {list(shape)}, got {list(tensor.shape)}")


def group_size_of(name: str, columns: int, groups: int, size: int) -> int:
    """Return a group size as in QuantizedTensor. Raises FormatError if it does not make that number of groups.

    Args:
        name: of the module, for errors.
        columns: inputs.
        groups: number of groups.
        size: inputs of a group, -1 for all.
    """
    inputs = columns if size == -1 else min(size, columns)
    if inputs < 1 or -(-columns // inputs) != groups:
        raise FormatError(f"{name}: {groups} groups of {size} do not make {columns} inputs")
    return inputs


def of_columns(name: str, leaf: str, tensors: Mapping[str, torch.Tensor], weight: QuantizedTensor) -> QuantizedTensor:
    """Return a weight whose groups may consist of scattered columns: each column becomes a group of its own.

    Args:
        name: of the module.
        leaf: of the tensor with the group of each column, integers [I]; -1 means that none was written.
        tensors: of the module, by name.
        weight: the weight with contiguous groups.

    Raises:
        FormatError: a group does not exist.
    """
    group = tensors.get(f"{name}.{leaf}")
    if group is None or bool((group == -1).all()):
        return weight
    inputs, groups = weight.shape[1], weight.scales.shape[-1]
    expect(name, leaf, group, inputs)
    if torch.equal(group.long(), torch.arange(inputs) // weight.group_size):
        return weight
    if int(group.min()) < 0 or int(group.max()) >= groups:
        raise FormatError(f"{name}: {leaf} has a group number outside 0 to {groups - 1}")
    scales = weight.scales[..., group.long()]
    zeros = None if weight.zeros is None else weight.zeros[:, group.long()]
    return replace(weight, scales=scales, zeros=zeros, group_size=1)
