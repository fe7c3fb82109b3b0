"""The format of sparse weights: kept values and their mask, each entropy-coded, in safetensors.

docs/format.md specifies it. A module has sparse_mask and sparse_values, uint8 payloads of tensors/zeros.py and
floats.py, or raw bytes if these are not longer. sparse_grid, int64 [9], has O, I, N, M, the removed share in parts per
million (without N:M) and the unit. It ends with the number of the values' dtype in DTYPES, and bits and group size of
codes, or 0. Codes of the kept weights are packed 8 // bits to a byte (3 bits: two, 5 and more: one); scales, zeros,
codebook and global_scale are as in QuantizedTensor. Adapters are left_* and right_*: weight, or the tensors of the
format squeeze.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from squeeze.checkpoint.pattern import Pattern
from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.checkpoint.sparse import Adapters, SparseTensor, Values
from squeeze.errors import FormatError, printable
from squeeze.packing.tensors import floats, zeros
from squeeze.quant.formats.common import take
from squeeze.quant.formats.spec import BITS
from squeeze.quant.formats.squeeze import SqueezeFormat
from squeeze.system.limits import Limits

__all__ = ["LEAVES", "METHOD", "SparseFormat"]

METHOD = "squeeze-sparse"  # of the quantization_config
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_NAMES = ("BF16", "F16", "F32")
_VERSION = 1
_OF_GRID = ("scales", "zeros", "codebook", "global_scale")
_OF_ADAPTERS = ("weight", "codes", "scales", "grid", "zeros")
LEAVES = (
    *("sparse_mask", "sparse_values", "sparse_grid", *_OF_GRID),
    *(f"{side}_{leaf}" for side in ("left", "right") for leaf in _OF_ADAPTERS),
)
_OWN = SqueezeFormat()


@dataclass(frozen=True)
class SparseFormat:
    """The format of sparse weights with any pattern."""

    name: str = "squeeze"
    leaves: tuple[str, ...] = LEAVES

    def tensors(self, name: str, weight: SparseTensor) -> dict[str, torch.Tensor]:
        """Return the stored tensors of the weight of module `name`."""
        mask, values, pattern = weight.mask.cpu(), weight.values, weight.pattern
        stored = {"sparse_mask": _tensor(zeros.encode_mask(mask.numpy().reshape(-1)))}
        grid = [*mask.shape, pattern.n, pattern.m, round(1e6 * pattern.removed), pattern.unit]
        if isinstance(values, QuantizedTensor):
            packed = _packed(values.codes.cpu()[mask], values.bits)
            stored["sparse_values"] = _coded(packed, "U8")
            grid += [DTYPES.index(values.scales.dtype), values.bits, values.group_size]
            leaves = {leaf: getattr(values, leaf) for leaf in _OF_GRID}
            stored |= {leaf: tensor.contiguous() for leaf, tensor in leaves.items() if tensor is not None}
        else:
            stored["sparse_values"] = _coded(_bytes(values.cpu()[mask]), _NAMES[DTYPES.index(values.dtype)])
            grid += [DTYPES.index(values.dtype), 0, 0]
        stored["sparse_grid"] = torch.tensor(grid)
        if weight.adapters is not None:
            for side in ("left", "right"):
                stored |= _adapter(side, getattr(weight.adapters, side))
        return {f"{name}.{leaf}": tensor for leaf, tensor in stored.items()}

    def weight(self, name: str, tensors: Mapping[str, torch.Tensor]) -> SparseTensor:
        """Return the weight of stored tensors.

        Raises FormatError if tensors are missing or inconsistent, DamagedError if a payload is damaged.
        """
        grid = take(name, tensors, "sparse_grid", torch.int64).flatten().tolist()
        if len(grid) != 9 or not 0 <= grid[6] < len(DTYPES) or min(grid[:2]) < 1 or grid[7] not in (0, *BITS):
            raise FormatError(f"{name}: expected a sparse matrix, got an invalid sparse_grid")
        outputs, inputs, kept, of, removed, unit, kind, bits, group_size = grid
        pattern, width = Pattern(kept, of, removed / 1e6, unit), 1 if bits else DTYPES[kind].itemsize
        Limits().need_memory((1 + width) * outputs * inputs, f"{name}: its sparse weight")
        payload = take(name, tensors, "sparse_mask", torch.uint8)
        flat = torch.from_numpy(zeros.decode_mask(_array(payload), outputs * inputs))
        mask, count = flat.view(outputs, inputs), int(flat.sum())
        payload = take(name, tensors, "sparse_values", torch.uint8)
        values: Values
        if bits:
            fields = 8 // bits
            packed = _decoded(payload, "U8", -(-count // fields))
            codes = torch.zeros((outputs, inputs), dtype=torch.uint8)
            codes[mask] = _unpacked(packed, bits, count)
            values = self._quantised(name, tensors, codes, bits, group_size)
        else:
            raw = _decoded(payload, _NAMES[kind], count * DTYPES[kind].itemsize)
            values = torch.zeros((outputs, inputs), dtype=DTYPES[kind])
            values[mask] = torch.from_numpy(raw).view(DTYPES[kind])
        return SparseTensor(values, mask, pattern, _adapters(name, tensors, outputs, inputs))

    def _quantised(
        self, name: str, tensors: Mapping[str, torch.Tensor], codes: torch.Tensor, bits: int, group_size: int
    ) -> QuantizedTensor:
        scales = take(name, tensors, "scales")
        groups = -(-codes.shape[1] // group_size) if group_size > 0 else 0
        if scales.ndim != 3 or scales.shape[1:] != (len(codes), groups):
            raise FormatError(f"{name}: expected scales of {groups} groups of {group_size} inputs")
        optional = [tensors.get(f"{name}.{leaf}") for leaf in _OF_GRID[1:]]
        return QuantizedTensor(codes, scales, optional[0], bits, group_size, optional[1], optional[2])

    def config(self, excluded: list[str], dtype: torch.dtype, method: str) -> dict[str, Any]:
        """Return the `quantization_config` for config.json."""
        described = {"quant_method": METHOD, "version": _VERSION, "method": method, "ignored": excluded}
        return {"quantization_config": {**described, "dtype": str(dtype).removeprefix("torch.")}}

    def check(self, config: Mapping[str, Any]) -> None:
        """Raise FormatError for the `quantization_config` of a newer version."""
        if config.get("version") != _VERSION:
            raise FormatError(
                f"unknown version {printable(repr(config.get('version')))} of sparse weights: use a newer squeeze"
            )


def _adapter(side: str, values: Values) -> dict[str, torch.Tensor]:
    if isinstance(values, torch.Tensor):
        return {f"{side}_weight": values.contiguous()}
    stored = _OWN.tensors("", values, values.scales.dtype)
    return {f"{side}_{name.removeprefix('.')}": tensor for name, tensor in stored.items()}


def _adapters(name: str, tensors: Mapping[str, torch.Tensor], outputs: int, inputs: int) -> Adapters | None:
    left, right = (_side(name, side, tensors) for side in ("left", "right"))
    if left is None or right is None:
        return None
    if tuple(left.shape) != (right.shape[0], outputs) or right.shape[1:] != (inputs,):
        raise FormatError(f"{name}: expected adapters of a matrix of {outputs} x {inputs}")
    return Adapters(left, right)


def _side(name: str, side: str, tensors: Mapping[str, torch.Tensor]) -> Values | None:
    adapters = {
        f"{name}.{leaf}": tensors[f"{name}.{side}_{leaf}"]
        for leaf in _OF_ADAPTERS
        if f"{name}.{side}_{leaf}" in tensors
    }
    if f"{name}.codes" in adapters:
        return _OWN.stored(name, adapters)
    return adapters.get(f"{name}.weight")


def _array(payload: torch.Tensor) -> np.ndarray:
    return np.ascontiguousarray(payload.cpu().numpy())


def _tensor(payload: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(payload))


def _bytes(values: torch.Tensor) -> np.ndarray:
    return values.contiguous().view(torch.uint8).numpy().reshape(-1)


def _coded(raw: np.ndarray, dtype: str) -> torch.Tensor:
    payload = floats.encode(raw, dtype)
    return _tensor(raw if payload is None else payload)


def _decoded(payload: torch.Tensor, dtype: str, size: int) -> np.ndarray:
    if payload.numel() == size:
        return _array(payload)
    return floats.decode(_array(payload), dtype, size)


def _packed(codes: torch.Tensor, bits: int) -> np.ndarray:
    """Pack codes uint8 [N] into bytes, the first code in the lowest bits."""
    fields = 8 // bits
    padded = torch.nn.functional.pad(codes, (0, -len(codes) % fields)).view(-1, fields)
    shifts = torch.arange(fields, dtype=torch.uint8) * bits
    return (padded << shifts).sum(1, dtype=torch.uint8).numpy()


def _unpacked(packed: np.ndarray, bits: int, count: int) -> torch.Tensor:
    shifts = torch.arange(8 // bits, dtype=torch.uint8) * bits
    codes = torch.from_numpy(packed)[:, None] >> shifts & ((1 << bits) - 1)
    return codes.reshape(-1)[:count]
