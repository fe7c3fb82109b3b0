"""compressed-tensors checkpoints of the kind `pack-quantized`, as llm-compressor writes and vLLM reads them.

A module has weight_packed int32 [O, ceil(I bits / 32)], codes packed along the inputs; weight_scale [O, G];
weight_shape int64 [2]; and where the grid is asymmetric weight_zero_point int32 [ceil(O bits / 32), G], packed along
the outputs. Values are stored as they are here, from 0; the client subtracts 2^(bits - 1) from codes and zero points.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from squeeze.checkpoint import bits as packing
from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.errors import FormatError, printable
from squeeze.quant.formats.common import expect, group_size_of, only_integers, only_plain, scales_as, take, understood
from squeeze.quant.formats.spec import Grid, QuantizationSpec

PACKED = "pack-quantized"


@dataclass(frozen=True)
class CompressedTensorsFormat:
    """The format `compressed-tensors`."""

    name: str = "compressed-tensors"
    leaves: tuple[str, ...] = ("weight_packed", "weight_scale", "weight_shape", "weight_zero_point")
    transposed: bool = False

    def describes(self, config: Mapping[str, Any]) -> bool:
        """As Format.describes."""
        return config.get("quant_method") == "compressed-tensors"

    def check(self, spec: QuantizationSpec) -> None:
        only_integers(self.name, spec)

    def tensors(self, name: str, weight: QuantizedTensor, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        only_plain(self.name, name, weight)
        stored = {
            f"{name}.weight_packed": packing.pack(weight.codes, weight.bits),
            f"{name}.weight_scale": scales_as(dtype, name, weight.scales[0]),
            f"{name}.weight_shape": torch.tensor(weight.shape),
        }
        if weight.zeros is not None:
            stored[f"{name}.weight_zero_point"] = packing.pack(weight.zeros.T.contiguous(), weight.bits).T.contiguous()
        return stored

    def weight(self, name: str, tensors: Mapping[str, torch.Tensor], spec: QuantizationSpec) -> QuantizedTensor:
        grid = spec.of(name)
        packed, scales = take(name, tensors, "weight_packed", torch.int32), take(name, tensors, "weight_scale")
        shape = take(name, tensors, "weight_shape")
        if shape.numel() != 2 or scales.ndim != 2:
            raise FormatError(f"{name}: is not a matrix")
        outputs, inputs = (int(size) for size in shape.flatten().tolist())
        expect(name, "weight_packed", packed, outputs, packing.words_for(inputs, grid.bits))
        groups = scales.shape[1]
        expect(name, "weight_scale", scales, outputs, groups)
        zeros = None
        if not grid.symmetric:
            words = take(name, tensors, "weight_zero_point", torch.int32)
            expect(name, "weight_zero_point", words, packing.words_for(outputs, grid.bits), groups)
            zeros = packing.unpack(words.T.contiguous(), grid.bits, outputs).T.contiguous()
        size = group_size_of(name, inputs, groups, grid.group_size)
        return QuantizedTensor(packing.unpack(packed, grid.bits, inputs), scales[None], zeros, grid.bits, size)

    def config(self, spec: QuantizationSpec) -> dict[str, Any]:
        self.check(spec)
        groups = {"group_0": _group(["Linear"], spec.common)}
        exceptions = [*spec.modules.items(), *((f"re:{pattern}", grid) for pattern, grid in spec.patterns)]
        for grid in dict.fromkeys(grid for _, grid in exceptions):
            targets = [target for target, other in exceptions if other == grid]
            groups[f"group_{len(groups)}"] = _group(targets, grid)
        return {
            "quant_method": self.name,
            "format": PACKED,
            "quantization_status": "compressed",
            "global_compression_ratio": None,
            "kv_cache_scheme": None,
            "config_groups": groups,
            "ignore": list(spec.ignored),
        }

    def spec(self, config: Mapping[str, Any]) -> QuantizationSpec:
        kind = config.get("format")
        if kind != PACKED:
            raise FormatError(
                f"compressed-tensors of format {printable(repr(kind))} are not supported: only {PACKED} is"
            )
        with understood("a config group of compressed-tensors"):
            groups = list(dict(config["config_groups"]).values())
            grids = [_grid(group["weights"]) for group in groups]
            targets = [(str(target), grids[n]) for n, group in enumerate(groups) for target in group["targets"]]
            common = next((grid for target, grid in targets if target == "Linear"), grids[0])
            ignored = tuple(str(name) for name in config.get("ignore") or ())
        exact = {target: grid for target, grid in targets if target != "Linear" and not target.startswith("re:")}
        patterns = tuple((target.removeprefix("re:"), grid) for target, grid in targets if target.startswith("re:"))
        values = (common.bits, common.group_size, common.symmetric)
        return QuantizationSpec(*values, modules=exact, ignored=ignored, patterns=patterns)


def _group(targets: list[str], grid: Grid) -> dict[str, Any]:
    weights: dict[str, Any] = {
        "num_bits": grid.bits,
        "type": "int",
        "symmetric": grid.symmetric,
        "strategy": "channel" if grid.group_size == -1 else "group",
        "dynamic": False,
    }
    if grid.group_size != -1:
        weights["group_size"] = grid.group_size
    return {
        "targets": targets,
        "weights": weights,
        "input_activations": None,
        "output_activations": None,
        "format": PACKED,
    }


def _grid(weights: Mapping[str, Any]) -> Grid:
    if weights.get("type", "int") != "int" or weights.get("strategy") not in ("group", "channel"):
        raise FormatError("compressed-tensors: only integer weights in groups or channels are supported")
    if weights.get("actorder") in ("group", "dynamic"):
        raise FormatError("compressed-tensors: weights whose groups are permuted (actorder group) are not supported")
    size = -1 if weights["strategy"] == "channel" else int(weights["group_size"])
    return Grid(int(weights["num_bits"]), size, bool(weights.get("symmetric", True)))
