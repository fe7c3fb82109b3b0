"""Make checkpoints on grids from one in float32, for `lossless`: weights of few bits, stored wide, in FP8 and in GGUF.

The codes are those of rounding to nearest. Only matrices are converted; all other tensors stay, or are rounded to bf16.
"""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import load_file, save_file

from squeeze.packing.tensors.grid_levels import NF4, TABLES

__all__ = ["make"]

Tensors = dict[str, torch.Tensor]
_LEAST = 1 << 14  # values of a matrix that is converted


def make(source: Path) -> None:
    """Write the checkpoints into the folder of `source`, unless they exist."""
    weights, title = load_file(source), source.stem
    for name, (convert, others) in CONVERTED.items():
        path = source.with_name(f"{title}-{name}.safetensors")
        if not path.exists():
            save_file(_converted(weights, convert, others), path, {"format": "pt"})
    if not (path := source.with_name(f"{title}-q8_0.gguf")).exists():
        _write_gguf(weights, path)


def _converted(weights: Tensors, convert: Callable[[torch.Tensor], Tensors], others: torch.dtype) -> Tensors:
    found: Tensors = {}
    for name, weight in weights.items():
        if weight.ndim == 2 and weight.numel() >= _LEAST and weight.shape[1] % 128 == 0:
            found |= {name + suffix: tensor.contiguous() for suffix, tensor in convert(weight.float()).items()}
        else:
            found[name] = weight.to(others) if weight.is_floating_point() else weight
    return found


def whole_numbers(weight: torch.Tensor, bits: int, group: int, dtype: torch.dtype) -> Tensors:
    values, most = weight.reshape(-1, group), (1 << (bits - 1)) - 1
    scale = values.abs().amax(1, keepdim=True).clamp(min=1e-12) / most
    codes = torch.round(values / scale).to(torch.int32)
    return {"": (codes * scale).reshape(weight.shape).to(dtype)}


def nf4(weight: torch.Tensor) -> Tensors:
    values = weight.reshape(-1, 64)
    levels = torch.from_numpy(np.concatenate((-TABLES[NF4, 1, 7:0:-1], TABLES[NF4, 0, :9])))
    scale = values.abs().amax(1, keepdim=True)
    middles = (levels[1:] + levels[:-1]) / 2
    return {"": (levels[torch.bucketize(values / scale, middles)] * scale).reshape(weight.shape).bfloat16()}


def fp8(weight: torch.Tensor) -> Tensors:
    scale = weight.abs().amax(1, keepdim=True) / 448
    return {"": (weight / scale).to(torch.float8_e4m3fn), "_scale": scale}


def fp8_in_bf16(weight: torch.Tensor) -> Tensors:
    rows, columns = weight.shape[0] // 128 * 128, weight.shape[1]
    tiles = weight[:rows].reshape(-1, 128, columns // 128, 128)
    scale = tiles.abs().amax((1, 3), keepdim=True) / 448
    found = ((tiles / scale).to(torch.float8_e4m3fn).float() * scale).reshape(rows, columns)
    return {"": torch.cat((found, torch.zeros(len(weight) - rows, columns))).bfloat16()}


def mixed(weight: torch.Tensor) -> Tensors:
    """Return large matrices in bf16, square ones in FP8, and others in float32."""
    if weight.shape[0] == weight.shape[1]:
        return fp8(weight)
    return {"": weight.bfloat16() if weight.numel() > 1 << 20 else weight}


CONVERTED: dict[str, tuple[Callable[[torch.Tensor], Tensors], torch.dtype]] = {
    "fp8": (fp8, torch.bfloat16),
    "mixed": (mixed, torch.float32),
    "int8-rows-in-bf16": (lambda w: whole_numbers(w, 8, w.shape[1], torch.bfloat16), torch.bfloat16),
    "int8-rows-in-fp32": (lambda w: whole_numbers(w, 8, w.shape[1], torch.float32), torch.float32),
    "int4-groups-in-bf16": (lambda w: whole_numbers(w, 4, 128, torch.bfloat16), torch.bfloat16),
    "int4-groups-in-fp32": (lambda w: whole_numbers(w, 4, 128, torch.float32), torch.float32),
    "fp8-blocks-in-bf16": (fp8_in_bf16, torch.bfloat16),
    "nf4-in-bf16": (nf4, torch.bfloat16),
}


def _write_gguf(weights: Tensors, path: Path) -> None:
    writer = gguf.GGUFWriter(path, "bert")
    for name, weight in weights.items():
        values = weight.float().numpy()
        kind = gguf.GGMLQuantizationType.Q8_0 if values.ndim == 2 and values.shape[1] % 32 == 0 else None
        writer.add_tensor(name, values if kind is None else gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
