"""compressed-tensors checkpoints, as llm-compressor writes and vLLM reads them.

Which formats there are for which grids is compressed_groups.py's, how weights lie in tensors compressed_layouts.py's.
A module whose activations have a scale from the calibration has that, too: input_scale [1], or input_global_scale
float32 [1], which scales of groups were multiplied with.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.errors import FormatError, printable
from squeeze.quant.activations import ACTIVATIONS, ActivationGrid
from squeeze.quant.formats.common import expect, only_fitting, split_groups, take, understood
from squeeze.quant.formats.compressed_groups import KINDS, WITH_WEIGHT, grid_of, group, kind_of
from squeeze.quant.formats.compressed_layouts import weight_from, weight_tensors
from squeeze.quant.formats.spec import Grid, QuantizationSpec

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
        """As Format.describes."""
        return config.get("quant_method") == METHOD

    def check(self, spec: QuantizationSpec) -> None:
        for prefix, grid in spec.grids.items():
            try:
                kind_of(grid)
            except FormatError as error:
                raise FormatError(f"{prefix}{error}") from None

    def misfit(self, grid: Grid, outputs: int, inputs: int) -> str | None:
        """As Format.misfit. The package pads rows to whole blocks, and inputs to nothing."""
        return split_groups(self.name, grid, inputs)

    def alone(self, grid: Grid) -> bool:
        """Transformers 5 loads integers with zero points by way of floats, and takes one group for all."""
        return grid.codebook is None and not grid.symmetric

    def keeps_weight(self, grid: Grid) -> bool:
        """As Format.keeps_weight."""
        return kind_of(grid) in WITH_WEIGHT

    def tensors(
        self, name: str, weight: QuantizedTensor, dtype: torch.dtype, grid: Grid | None = None
    ) -> dict[str, torch.Tensor]:
        grid = grid or Grid(weight.bits, weight.group_size, weight.symmetric)
        kind_of(grid)
        if (weight.codebook is None) != (grid.codebook is None) or weight.outliers is not None:
            raise FormatError(f"{name}: {self.name} holds no codebook of its own, nor outliers: use the format squeeze")
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
        told: dict[Grid, list[str]] = {}
        for target, grid in exceptions:
            told.setdefault(grid, []).append(target)
        groups = [group(targets, grid) for grid, targets in told.items()]
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
                    raise FormatError(f"compressed-tensors of format {unknown} are not supported: {known} are")
            grids = [grid_of(one) for one in groups]
            targets = [(str(target), grids[n]) for n, one in enumerate(groups) for target in one["targets"]]
            common = next((grid for target, grid in targets if target == "Linear"), grids[0])
            ignored = tuple(str(name) for name in config.get("ignore") or ())
        exact = {target: grid for target, grid in targets if target != "Linear" and not target.startswith("re:")}
        patterns = tuple((target.removeprefix("re:"), grid) for target, grid in targets if target.startswith("re:"))
        return QuantizationSpec.of_grid(common, modules=exact, ignored=ignored, patterns=patterns)


def _ranged(grid: Grid) -> ActivationGrid | None:
    """What is done to activations, where the calibration finds a scale of them."""
    rounding = None if grid.activations is None else ACTIVATIONS[grid.activations]
    return rounding if rounding and rounding.ranged else None
