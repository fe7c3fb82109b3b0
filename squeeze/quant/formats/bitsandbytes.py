"""bitsandbytes checkpoints of 4 bits, as transformers writes and loads them: NF4 with double quantisation.

A module has these tensors:

- weight, uint8 [O I / 2, 1]: codes row by row, the first of two in the upper bits. - weight.absmax, uint8 [O I / 64]:
codes of scales; without double quantisation the scales, float32. - weight.nested_absmax, float32 [ceil(O I / 64 /
256)], and weight.nested_quant_map, float32 [256]. - weight.quant_map, float32 [16]. -
weight.quant_state.bitsandbytes__nf4: the bytes of a JSON object with types, shape, block sizes and the mean of scales.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch

from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.errors import FormatError, printable
from squeeze.quant.formats.common import expect, only_fitting, take, understood
from squeeze.quant.formats.spec import Grid, QuantizationSpec
from squeeze.quant.scales import BLOCK, LEVELS, Nested
from squeeze.system.documents import parse

__all__ = ["BitsAndBytesFormat", "shape_of"]

_GRID = "nf4-nested"
_LONGEST_STATE = 1 << 16  # bytes
_STATE = "weight.quant_state.bitsandbytes__nf4"
_GROUP = 64


@dataclass(frozen=True)
class BitsAndBytesFormat:
    """The format `bitsandbytes`."""

    name: str = "bitsandbytes"
    leaves: tuple[str, ...] = (
        *(_STATE, "weight", "weight.absmax", "weight.quant_map"),
        *("weight.nested_absmax", "weight.nested_quant_map"),
    )
    scale_dtype: torch.dtype | None = None
    transposed: bool = False

    def describes(self, config: Mapping[str, Any]) -> bool:
        return config.get("quant_method") == self.name

    def check(self, spec: QuantizationSpec) -> None:
        for grid in spec.grids.values():
            if grid.codebook != _GRID or grid.outliers:
                raise FormatError(f"bitsandbytes needs the grid {_GRID} without outliers: add `grid` {_GRID}")

    def misfit(self, grid: Grid, outputs: int, inputs: int) -> str | None:
        """Return None: the format needs no more of a shape than the grid."""
        return None

    def needs_one_grid(self, grid: Grid) -> bool:
        """Return False: there is only one grid."""
        return False

    def keeps_weight(self, grid: Grid) -> bool:
        return True

    def tensors(
        self, name: str, weight: QuantizedTensor, dtype: torch.dtype, grid: Grid | None = None
    ) -> dict[str, torch.Tensor]:
        """Return the tensors of a weight; see Format.tensors. `dtype` is that of the dense weights that loaders
        make."""
        nested = weight.nested
        if not isinstance(nested, Nested) or weight.codebook is None or weight.outliers is not None:
            raise FormatError(f"{name}: the format bitsandbytes needs the grid {_GRID} without outliers")
        only_fitting(name, None if weight.shape[1] % _GROUP == 0 else f"{weight.shape[1]} inputs are not whole blocks")
        state = {
            **{"quant_type": "nf4", "blocksize": _GROUP, "dtype": str(dtype).removeprefix("torch.")},
            **{"shape": list(weight.shape), "nested_blocksize": BLOCK, "nested_dtype": "float32"},
            "nested_offset": float(nested.mean),
        }
        codes = weight.codes.flatten()
        stored = {
            "weight": (codes[::2] << 4 | codes[1::2])[:, None],
            "weight.absmax": nested.codes.flatten(),
            "weight.quant_map": weight.codebook[0].float(),
            "weight.nested_absmax": nested.factors,
            "weight.nested_quant_map": LEVELS,
            _STATE: torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8),
        }
        return {f"{name}.{leaf}": tensor.clone().contiguous() for leaf, tensor in stored.items()}

    def weight(self, name: str, tensors: Mapping[str, torch.Tensor], spec: QuantizationSpec) -> QuantizedTensor:
        state = _state(name, take(name, tensors, _STATE, torch.uint8))
        outputs, inputs = _shape(name, state)
        packed, size = take(name, tensors, "weight", torch.uint8).flatten(), state.get("blocksize")
        if size != _GROUP or inputs % _GROUP:
            raise FormatError(f"{name}: expected blocks of 64 in whole rows, got {printable(size)} in rows of {inputs}")
        expect(name, "weight", packed, outputs * inputs // 2)
        levels = take(name, tensors, "weight.quant_map", torch.float32)
        expect(name, "weight.quant_map", levels, 16)
        codes = torch.stack([packed >> 4, packed & 15], -1).reshape(outputs, inputs)
        groups, absmax = inputs // _GROUP, take(name, tensors, "weight.absmax")
        expect(name, "weight.absmax", absmax, outputs * groups)
        if absmax.dtype != torch.uint8:
            scales = absmax.float().reshape(1, outputs, groups)
            return QuantizedTensor(codes, scales, None, 4, _GROUP, levels[None])
        nested = _nested(name, tensors, state, absmax.reshape(outputs, groups))
        return QuantizedTensor(codes, nested.scales()[None], None, 4, _GROUP, levels[None], nested=nested)

    def config(self, spec: QuantizationSpec) -> dict[str, Any]:
        self.check(spec)
        return {
            "quant_method": self.name,
            "load_in_4bit": True,
            "load_in_8bit": False,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": True,
            "bnb_4bit_compute_dtype": str(spec.dtype).removeprefix("torch."),
            "bnb_4bit_quant_storage": "uint8",
            "llm_int8_skip_modules": list(spec.ignored),
        }

    def spec(self, config: Mapping[str, Any]) -> QuantizationSpec:
        said = config.get("load_in_4bit", config.get("_load_in_4bit")), config.get("bnb_4bit_quant_type")
        if said != (True, "nf4") or config.get("bnb_4bit_quant_storage", "uint8") != "uint8":
            raise FormatError("bitsandbytes is read in 4 bits of nf4 that are stored as bytes, and not otherwise")
        with understood("the quantization_config of bitsandbytes"):
            ignored = tuple(str(name) for name in config.get("llm_int8_skip_modules") or ())
        return QuantizationSpec(4, _GROUP, True, _GRID, ignored=ignored)


def shape_of(name: str, state: torch.Tensor) -> tuple[int, int]:
    """Return the shape of a module's weight from its quant_state. Raises FormatError if that is invalid."""
    return _shape(name, _state(name, state))


def _state(name: str, stored: torch.Tensor) -> dict[str, Any]:
    subject = f"{name}.{_STATE}"
    with understood(subject):
        text = bytes(stored.flatten().tolist())
    try:
        state: dict[str, Any] = parse(text, schema={...: object}, most=_LONGEST_STATE)
    except FormatError as error:
        raise FormatError(f"{subject} does not say how its weights are stored: {error}") from None
    return state


def _shape(name: str, state: Mapping[str, Any]) -> tuple[int, int]:
    shape = state.get("shape")
    if not (isinstance(shape, list) and len(shape) == 2 and all(type(size) is int and size > 0 for size in shape)):
        raise FormatError(f"{name}: expected the shape of a matrix, got {printable(repr(shape))}")
    return shape[0], shape[1]


def _nested(name: str, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any], codes: torch.Tensor) -> Nested:
    factors = take(name, tensors, "weight.nested_absmax", torch.float32)
    expect(name, "weight.nested_absmax", factors, ceil(codes.numel() / BLOCK))
    if not torch.equal(take(name, tensors, "weight.nested_quant_map").cpu(), LEVELS):
        raise FormatError(f"{name}: weight.nested_quant_map is not the map of bitsandbytes")
    mean = state.get("nested_offset")
    if state.get("nested_blocksize") != BLOCK or not isinstance(mean, float):
        raise FormatError(f"{name}: its quant_state does not say how scales are stored")
    return Nested(codes, factors, torch.tensor(mean))
