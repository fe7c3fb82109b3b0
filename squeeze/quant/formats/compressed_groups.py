"""The config groups of compressed-tensors: a grid of weights and one of inputs, in the package's own words."""

from collections.abc import Mapping
from typing import Any

from squeeze.errors import FormatError, printable
from squeeze.quant.formats.spec import Grid

__all__ = ["KINDS", "PACKED", "WITH_WEIGHT", "grid_of", "group", "kind_of"]

PACKED, INTEGERS, FLOATS, NAIVE = "pack-quantized", "int-quantized", "float-quantized", "naive-quantized"
NVFP4, MXFP4 = "nvfp4-pack-quantized", "mxfp4-pack-quantized"
KINDS = (PACKED, INTEGERS, FLOATS, NAIVE, NVFP4, MXFP4)
WITH_WEIGHT = (INTEGERS, FLOATS, NAIVE)  # codes in a tensor of the name `weight`

_DYNAMIC = {"symmetric": True, "dynamic": True}
_ACTIVATIONS: Mapping[str, Mapping[str, Any]] = {
    "int8-token": {"num_bits": 8, "type": "int", "strategy": "token", **_DYNAMIC},
    "fp8-token": {"num_bits": 8, "type": "float", "strategy": "token", **_DYNAMIC},
    "fp8-group": {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 128, **_DYNAMIC},
    "fp8-tensor": {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False},
    "nvfp4": {
        **{"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
        **{"symmetric": True, "dynamic": "local", "scale_dtype": "torch.float8_e4m3fn"},
    },
    "mxfp4": {
        **{"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32},
        **{"scale_dtype": "torch.uint8", **_DYNAMIC},
    },
}
_TELLING = ("num_bits", "type", "strategy", "group_size", "symmetric", "dynamic")
_FP4 = {
    "nvfp4": {"strategy": "tensor_group", "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"},
    "mxfp4": {"strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"},
}


def kind_of(grid: Grid) -> str:
    """The `format` that the package gives a grid. Raises FormatError for one that it cannot hold."""
    if grid.outliers or grid.codebook not in (None, "fp8", *_FP4):
        what = "keep outlier columns" if grid.outliers else f"hold {grid.codebook}"
        raise FormatError(f"compressed-tensors cannot {what}: use the format squeeze")
    if grid.codebook == "fp8":
        return NAIVE if grid.activations is None else FLOATS
    if grid.codebook is not None:
        return NVFP4 if grid.codebook == "nvfp4" else MXFP4
    return PACKED if grid.activations is None else INTEGERS


def group(targets: list[str], grid: Grid) -> dict[str, Any]:
    """The config group of modules on a grid."""
    return {
        "targets": targets,
        "weights": _weights(grid),
        "input_activations": None if grid.activations is None else dict(_ACTIVATIONS[grid.activations]),
        "output_activations": None,
        "format": kind_of(grid),
    }


def _weights(grid: Grid) -> dict[str, Any]:
    if grid.codebook in _FP4:
        return {"num_bits": 4, "type": "float", "symmetric": True, "dynamic": False, **_FP4[grid.codebook]}
    symmetric = grid.symmetric or grid.codebook is not None
    kind = "int" if grid.codebook is None else "float"
    return {"num_bits": grid.bits, "type": kind, "symmetric": symmetric, "dynamic": False, **_strategy(grid)}


def _strategy(grid: Grid) -> dict[str, Any]:
    if grid.rows == -1:
        return {"strategy": "tensor"}
    if grid.rows > 1:
        return {"strategy": "block", "block_structure": [grid.rows, grid.group_size]}
    return {"strategy": "channel"} if grid.group_size == -1 else {"strategy": "group", "group_size": grid.group_size}


def grid_of(described: Mapping[str, Any]) -> Grid:
    """The inverse of `group`, for other writers' groups too. Raises FormatError for what we do not know, and as
    mappings do for what is missing."""
    weights, inputs = described["weights"], described.get("input_activations")
    strategy, kind, bits = weights.get("strategy"), weights.get("type", "int"), int(weights["num_bits"])
    codebook, rows, size = None, 1, -1
    if strategy in ("group", "tensor_group"):
        size = int(weights["group_size"])
    elif strategy == "block":
        rows, size = (int(n) for n in weights["block_structure"])
    elif strategy == "tensor":
        rows = -1
    elif strategy != "channel":
        raise FormatError(f"compressed-tensors: the strategy {printable(repr(strategy))} is not supported")
    if kind == "float":
        fp4 = {16: "nvfp4", 32: "mxfp4"}.get(size)
        codebook = "fp8" if bits == 8 else fp4 if bits == 4 else None
    if (kind == "float") != (codebook is not None) or (codebook is None and rows != 1) or kind not in ("int", "float"):
        raise FormatError(f"compressed-tensors: weights of {bits} bits ({kind}, {strategy}) are not supported")
    symmetric = bool(weights.get("symmetric", True))
    return Grid(bits, size, symmetric, codebook, rows=rows, activations=_activations(inputs))


def _activations(described: Mapping[str, Any] | None) -> str | None:
    if described is None:
        return None
    told = {key: described.get(key) for key in _TELLING}
    for name, known in _ACTIVATIONS.items():
        if told == {key: known.get(key) for key in _TELLING}:
            return name
    raise FormatError(f"compressed-tensors: inputs of {printable(told)} are not supported")
