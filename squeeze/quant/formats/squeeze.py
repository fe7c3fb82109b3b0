"""The format `squeeze`: everything that a QuantizedTensor can be, also what the standard formats cannot store.

docs/format.md specifies it. A module has codes int32 [O, ceil(I bits / 32)], packed along the inputs; scales [P, O, G];
grid int64 [4]: O, I, bits and group size. If the weight has them, also zeros int32 [O, ceil(G bits / 32)], packed along
the groups, codebook float32 [P, levels], global_scale float32 [], outlier_inputs int32 [K] and outliers [O, K].
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from squeeze.checkpoint import quantized as packing
from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.checkpoint.stored import dtype_named
from squeeze.errors import FormatError, printable
from squeeze.quant.formats.common import expect, group_size_of, scales_as, take, understood
from squeeze.quant.formats.spec import Grid, QuantizationSpec

METHOD = "squeeze-quantized"  # of the quantization_config
_VERSION = 1
NARROW = (torch.float8_e8m0fnu, torch.float8_e4m3fn)  # scales of one byte: MXFP4's, NVFP4's


@dataclass(frozen=True)
class SqueezeFormat:
    """The format `squeeze`."""

    name: str = "squeeze"
    leaves: tuple[str, ...] = (
        *("codes", "scales", "grid", "zeros", "codebook", "global_scale", "outlier_inputs", "outliers"),
    )

    scale_dtype: torch.dtype | None = None
    transposed: bool = True

    def describes(self, config: Mapping[str, Any]) -> bool:
        return config.get("quant_method") == METHOD

    def check(self, spec: QuantizationSpec) -> None:
        """Accept every grid but one whose scales it does not store as that grid has them."""
        if any(grid.codebook == "nf4-nested" for grid in spec.grids.values()):
            raise FormatError("squeeze stores scales of nf4-nested in 32 bits: use the format bitsandbytes or nf4-fp8")

    def misfit(self, grid: Grid, outputs: int, inputs: int) -> str | None:
        """Return None: every shape fits."""
        return None

    def needs_one_grid(self, grid: Grid) -> bool:
        """Return False: our loader mixes grids."""
        return False

    def keeps_weight(self, grid: Grid) -> bool:
        return True

    def tensors(
        self, name: str, weight: QuantizedTensor, dtype: torch.dtype, grid: Grid | None = None
    ) -> dict[str, torch.Tensor]:
        """Return the tensors of a weight; see Format.tensors. Scales keep their dtype; if `scale_bits` is 8 they are
        stored in 8 bits."""
        stored = {
            "codes": packing.pack(weight.codes, weight.bits),
            "scales": weight.scales if weight.scale_bits is None else _narrow(name, weight),
            "grid": torch.tensor([*weight.shape, weight.bits, weight.group_size]),
        }
        if weight.zeros is not None:
            stored["zeros"] = packing.pack(weight.zeros, weight.bits)
        if weight.codebook is not None:
            stored["codebook"] = weight.codebook.to(torch.float32).clone()  # modules may share it; files may not
        if weight.global_scale is not None:
            stored["global_scale"] = weight.global_scale.to(torch.float32)
        if weight.outliers is not None:
            stored["outlier_inputs"], stored["outliers"] = weight.outliers[0].to(torch.int32), weight.outliers[1]
        return {f"{name}.{leaf}": tensor.contiguous() for leaf, tensor in stored.items()}

    def weight(self, name: str, tensors: Mapping[str, torch.Tensor], spec: QuantizationSpec) -> QuantizedTensor:
        tensor = self.stored(name, tensors)
        spec.of(name).check(name, tensor)
        return tensor

    def stored(self, name: str, tensors: Mapping[str, torch.Tensor]) -> QuantizedTensor:
        """Return the weight of stored tensors, without a description."""
        outputs, inputs, bits, group_size = sizes(name, tensors)
        scales, zeros = tensors[f"{name}.scales"], tensors.get(f"{name}.zeros")
        if zeros is not None:
            zeros = packing.unpack(zeros, bits, scales.shape[2])
        narrow = scales.dtype in NARROW
        tensor = QuantizedTensor(
            packing.unpack(tensors[f"{name}.codes"], bits, inputs),
            scales.to(torch.float32) if narrow else scales,
            zeros,
            bits,
            group_size,
            tensors.get(f"{name}.codebook"),
            tensors.get(f"{name}.global_scale"),
            _outliers(name, tensors, outputs, inputs),
            8 if narrow else None,
        )
        if tensor.codebook is not None and tensor.codes.numel() and int(tensor.codes.max()) >= tensor.codebook.shape[1]:
            raise FormatError(f"{name}: expected codes below {tensor.codebook.shape[1]}, the size of the codebook")
        return tensor

    def config(self, spec: QuantizationSpec) -> dict[str, Any]:
        return {
            "quant_method": METHOD,
            "version": _VERSION,
            **_described(spec.common),
            "ignored": list(spec.ignored),
            "modules": {name: _described(grid) for name, grid in spec.modules.items()},
            "patterns": [[pattern, _described(grid)] for pattern, grid in spec.patterns],
            "dtype": str(spec.dtype).removeprefix("torch."),
            "method": spec.method,
        }

    def spec(self, config: Mapping[str, Any]) -> QuantizationSpec:
        if config.get("version") != _VERSION:
            version = printable(repr(config.get("version")))
            raise FormatError(f"unknown version {version} of the format squeeze: use a newer squeeze")
        with understood("the quantization_config of squeeze"):
            common = _grid(config)
            modules = {str(name): _grid(grid) for name, grid in dict(config.get("modules") or {}).items()}
            patterns = tuple((str(pattern), _grid(grid)) for pattern, grid in config.get("patterns") or ())
            ignored = tuple(str(name) for name in config.get("ignored") or ())
        method = config.get("method")
        dtype = dtype_named(config.get("dtype"))
        return QuantizationSpec.of_grid(
            common,
            ignored=ignored,
            modules=modules,
            dtype=dtype,
            method=None if method is None else str(method),
            patterns=patterns,
        )


def sizes(name: str, tensors: Mapping[str, torch.Tensor]) -> tuple[int, int, int, int]:
    """Return outputs, inputs, bits and group size from the `grid` of a module.

    Raises FormatError if codes, scales, zero points or codebook have other shapes or dtypes.
    """
    words, scales = take(name, tensors, "codes", torch.int32), take(name, tensors, "scales")
    grid, zeros = take(name, tensors, "grid", torch.int64), tensors.get(f"{name}.zeros")
    if grid.numel() != 4 or scales.ndim != 3:
        raise FormatError(f"{name}: expected a matrix")
    outputs, inputs, bits, group_size = (int(size) for size in grid.flatten().tolist())
    Grid(bits, group_size)
    planes, groups = scales.shape[0], scales.shape[2]
    expect(name, "codes", words, outputs, packing.words_for(inputs, bits))
    expect(name, "scales", scales, planes, outputs, groups)
    if zeros is not None:
        take(name, tensors, "zeros", torch.int32)
        expect(name, "zeros", zeros, outputs, packing.words_for(groups, bits))
    _check_planes(name, tensors.get(f"{name}.codebook"), planes)
    return outputs, inputs, bits, group_size_of(name, inputs, groups, group_size)


def _described(grid: Grid) -> dict[str, Any]:
    return {
        "bits": grid.bits,
        "group_size": grid.group_size,
        "symmetric": grid.symmetric,
        "codebook": grid.codebook,
        "outliers": grid.outliers,
    }


def _grid(config: Mapping[str, Any]) -> Grid:
    codebook = config.get("codebook")
    return Grid(
        *(int(config["bits"]), int(config["group_size"]), bool(config.get("symmetric", True))),
        *(None if codebook is None else str(codebook), bool(config.get("outliers", False))),
    )


def _narrow(name: str, weight: QuantizedTensor) -> torch.Tensor:
    """Return scales in the first dtype of one byte that represents them all."""
    if weight.scale_bits != 8:
        raise FormatError(f"{name}: expected scales of 8 bits, got {weight.scale_bits}")
    for dtype in NARROW:
        try:
            return scales_as(dtype, name, weight.scales)
        except FormatError:
            continue
    raise FormatError(f"{name}: expected scales that are powers of two or 8-bit floats (e4m3)")


def _outliers(
    name: str, tensors: Mapping[str, torch.Tensor], outputs: int, inputs: int
) -> tuple[torch.Tensor, torch.Tensor] | None:
    if f"{name}.outliers" not in tensors:
        return None
    columns, values = take(name, tensors, "outlier_inputs", torch.int32).long(), take(name, tensors, "outliers")
    expect(name, "outliers", values, outputs, columns.numel())
    if columns.numel() and not 0 <= int(columns.min()) <= int(columns.max()) < inputs:
        raise FormatError(f"{name}: an outlier column is outside the {inputs} inputs")
    return columns, values


def _check_planes(name: str, codebook: torch.Tensor | None, planes: int) -> None:
    """Raise FormatError if the number of planes of scales is not that of the codebook."""
    if codebook is None and planes != 1:
        raise FormatError(f"{name}: has {planes} planes of scales, but no codebook")
    if codebook is not None and (codebook.ndim != 2 or codebook.shape[0] != planes):
        raise FormatError(f"{name}: expected a codebook of {planes} planes, got shape {list(codebook.shape)}")
