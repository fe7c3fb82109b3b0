"""compressed-tensors checkpoints, as llm-compressor writes and vLLM reads them: config groups and modules.

The tensors of weights are in compressed_layouts.py. If calibration found a scale of a module's activations, it is
stored, too: input_scale [1], or for groups input_global_scale float32 [1], the factor of their scales.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.errors import FormatError, printable
from squeeze.quant.activations import ACTIVATIONS, ActivationGrid
from squeeze.quant.formats.common import expect, only_fitting, split_groups, take, understood
from squeeze.quant.formats.compressed_layouts import weight_from, weight_tensors
from squeeze.quant.formats.spec import Grid, QuantizationSpec

__all__ = ["KINDS", "PACKED", "WITH_WEIGHT", "grid_of", "group", "kind_of"]

METHOD = "compressed-tensors"  # of the quantization_config
_MIXED = "mixed-precision"


@dataclass(frozen=True)
class CompressedTensorsFormat:
    """The format `compressed-tensors`."""

    name: str = METHOD
    leaves: tuple[str, ...] = (
        *("weight_scale", "weight_packed", "weight", "weight_shape", "weight_zero_point", "weight_global_scale"),
        *("weight_g_idx", "input_scale", "input_global_scale"),
    )
    scale_dtype: torch.dtype | None = None
    transposed: bool = False

    def describes(self, config: Mapping[str, Any]) -> bool:
        return config.get("quant_method") == METHOD

    def check(self, spec: QuantizationSpec) -> None:
        for prefix, grid in spec.grids.items():
            try:
                kind_of(grid)
            except FormatError as error:
                raise FormatError(f"{prefix}{error}") from None

    def misfit(self, grid: Grid, outputs: int, inputs: int) -> str | None:
        """Return why a shape does not fit; see Format.misfit. The package pads rows to whole blocks, but not inputs."""
        return split_groups(self.name, grid, inputs)

    def needs_one_grid(self, grid: Grid) -> bool:
        """Return whether all weights of a folder have to be on the grid.

        Transformers 5 expands integers with zero points to floats, and takes one group for all.
        """
        return grid.codebook is None and not grid.symmetric

    def keeps_weight(self, grid: Grid) -> bool:
        return kind_of(grid) in WITH_WEIGHT

    def tensors(
        self, name: str, weight: QuantizedTensor, dtype: torch.dtype, grid: Grid | None = None
    ) -> dict[str, torch.Tensor]:
        grid = grid or Grid(weight.bits, weight.group_size, weight.symmetric)
        kind_of(grid)
        if (weight.codebook is None) != (grid.codebook is None) or weight.outliers is not None:
            raise FormatError(f"{name}: {self.name} cannot store codebooks or outliers: use the format squeeze")
        only_fitting(name, self.misfit(grid, *weight.shape))
        stored = weight_tensors(name, weight, grid, dtype)
        rounding = _ranged(grid)
        if rounding:
            factor = rounding.factor(weight.input_range).reshape(1)
            local = rounding.scales == "fp8"
            stored["input_global_scale" if local else "input_scale"] = factor if local else factor.to(dtype)
        return {f"{name}.{leaf}": tensor for leaf, tensor in stored.items()}

    def weight(self, name: str, tensors: Mapping[str, torch.Tensor], spec: QuantizationSpec) -> QuantizedTensor:
        grid = spec.of(name)
        weight, rounding = weight_from(name, tensors, grid), _ranged(grid)
        if not rounding:
            return weight
        factor = take(name, tensors, "input_global_scale" if rounding.scales == "fp8" else "input_scale")
        expect(name, "input_scale", factor, 1)
        return replace(weight, input_range=rounding.largest(factor))

    def config(self, spec: QuantizationSpec) -> dict[str, Any]:
        self.check(spec)
        exceptions = [*spec.modules.items(), *((f"re:{pattern}", grid) for pattern, grid in spec.patterns)]
        by_grid: dict[Grid, list[str]] = {}
        for target, grid in exceptions:
            by_grid.setdefault(grid, []).append(target)
        groups = [group(targets, grid) for grid, targets in by_grid.items()]
        groups.append(group(["Linear"], spec.common))  # before names it would leave the package none to match
        for weights in [one["weights"] for one in groups] if spec.ordered else ():
            if weights["strategy"] == "group":  # of others the package takes no order
                weights["actorder"] = "static"
        kinds = {one["format"] for one in groups}
        return {
            "quant_method": self.name,
            "format": kinds.pop() if len(kinds) == 1 else _MIXED,
            "quantization_status": "compressed",
            "global_compression_ratio": None,
            "kv_cache_scheme": None,
            "config_groups": {f"group_{n}": one for n, one in enumerate(groups)},
            "ignore": list(spec.ignored),
        }

    def spec(self, config: Mapping[str, Any]) -> QuantizationSpec:
        with understood("a config group of compressed-tensors"):
            groups = list(dict(config["config_groups"]).values())
            for kind in (one.get("format") or config.get("format") for one in groups):
                if kind not in KINDS:
                    unknown = printable(repr(kind))
                    known = ", ".join(KINDS)
                    raise FormatError(f"expected a format of compressed-tensors among {known}, got {unknown}")
            grids = [grid_of(one) for one in groups]
            targets = [(str(target), grids[n]) for n, one in enumerate(groups) for target in one["targets"]]
            common = next((grid for target, grid in targets if target == "Linear"), grids[0])
            ignored = tuple(str(name) for name in config.get("ignore") or ())
        exact = {target: grid for target, grid in targets if target != "Linear" and not target.startswith("re:")}
        patterns = tuple((target.removeprefix("re:"), grid) for target, grid in targets if target.startswith("re:"))
        return QuantizationSpec.of_grid(common, modules=exact, ignored=ignored, patterns=patterns)


def _ranged(grid: Grid) -> ActivationGrid | None:
    """Return the rounding of activations if calibration finds a scale for it."""
    rounding = None if grid.activations is None else ACTIVATIONS[grid.activations]
    return rounding if rounding and rounding.ranged else None


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
    """Return the name that the package gives to the format of a grid. Raises FormatError if it cannot store the
    grid."""
    if grid.outliers or grid.codebook not in (None, "fp8", *_FP4):
        what = "outlier columns" if grid.outliers else f"{grid.codebook}"
        raise FormatError(f"the format compressed-tensors cannot store {what}: use the format squeeze")
    if grid.codebook == "fp8":
        return NAIVE if grid.activations is None else FLOATS
    if grid.codebook is not None:
        return NVFP4 if grid.codebook == "nvfp4" else MXFP4
    return PACKED if grid.activations is None else INTEGERS


def group(targets: list[str], grid: Grid) -> dict[str, Any]:
    """Return the config group of modules on a grid."""
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
    """Return the grid of a config group, also of other writers.

    Raises FormatError for grids that are not supported, and LookupError or TypeError for invalid descriptions.
    """
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
        raise FormatError(f"compressed-tensors: unsupported strategy {printable(repr(strategy))}")
    if kind == "float":
        fp4 = {16: "nvfp4", 32: "mxfp4"}.get(size)
        codebook = "fp8" if bits == 8 else fp4 if bits == 4 else None
    if (kind == "float") != (codebook is not None) or (codebook is None and rows != 1) or kind not in ("int", "float"):
        raise FormatError(f"compressed-tensors: unsupported weights of {bits} bits ({kind}, {strategy})")
    symmetric = bool(weights.get("symmetric", True))
    return Grid(bits, size, symmetric, codebook, rows=rows, activations=_activations(inputs))


def _activations(described: Mapping[str, Any] | None) -> str | None:
    if described is None:
        return None
    told = {key: described.get(key) for key in _TELLING}
    for name, known in _ACTIVATIONS.items():
        if told == {key: known.get(key) for key in _TELLING}:
            return name
    raise FormatError(f"compressed-tensors: unsupported input_activations {printable(told)}")
