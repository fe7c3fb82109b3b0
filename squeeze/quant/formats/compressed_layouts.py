"""The tensors of a module's weight in each format of compressed-tensors.

pack-quantized: weight_packed int32 [O, ceil(I bits / 32)], codes packed along the inputs. weight_scale [O, G],
weight_shape int64 [2]. If the grid is asymmetric, weight_zero_point int32 [ceil(O bits / 32), G], packed along the
outputs. Codes and zero points are stored from 0; the client subtracts 2^(bits - 1). Other writers add weight_g_idx
int32 [I], the group of each input, if groups are scattered (actorder).

int-quantized: weight int8 [O, I] and weight_zero_point int8 [O, G], with 2^(bits - 1) already subtracted. weight_scale
[O, G].

float-quantized and naive-quantized: weight float8_e4m3fn [O, I]. weight_scale [O, G], [O / 128, I / 128] or [1].

nvfp4-pack-quantized and mxfp4-pack-quantized: weight_packed uint8 [O, I / 2], the first code of two in the lower bits.
NVFP4 has weight_scale float8_e4m3fn [O, G], to be divided by weight_global_scale float32 [1]; MXFP4 has weight_scale
uint8 [O, G], exponents of two plus 127.
"""

from collections.abc import Mapping

import torch

from squeeze.checkpoint import quantized as packing
from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.errors import FormatError
from squeeze.quant.codebooks import CODEBOOKS, FLOATS
from squeeze.quant.formats.common import expect, group_size_of, of_columns, scales_as, take
from squeeze.quant.formats.spec import Grid

__all__ = ["weight_from", "weight_tensors"]

Tensors = Mapping[str, torch.Tensor]


def weight_tensors(name: str, weight: QuantizedTensor, grid: Grid, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return the stored tensors of a weight, by leaf.

    Args:
        name: of the module, for errors.
        weight: the weight.
        grid: its grid.
        dtype: of scales.

    Raises:
        FormatError: scales would change.
    """
    if grid.codebook in ("nvfp4", "mxfp4"):
        return _fp4(name, weight)
    scale = scales_as(dtype, name, weight.scales[0])
    if grid.codebook == "fp8":
        rows = len(scale) if grid.rows == -1 else grid.rows
        scale = scale[::rows].contiguous()
        floats = weight.codes.contiguous().view(torch.float8_e4m3fn)
        return {"weight": floats, "weight_scale": scale.flatten() if grid.rows == -1 else scale}
    if grid.activations is not None:
        return _integers(weight, scale)
    stored = {
        "weight_packed": packing.pack(weight.codes, weight.bits),
        "weight_scale": scale,
        "weight_shape": torch.tensor(weight.shape),
    }
    if weight.zeros is not None:
        stored["weight_zero_point"] = packing.pack(weight.zeros.T.contiguous(), weight.bits).T.contiguous()
    return stored


def _integers(weight: QuantizedTensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
    middle = 1 << (weight.bits - 1)
    stored = {"weight": _signed(weight.codes, middle), "weight_scale": scale}
    if weight.zeros is not None:
        stored["weight_zero_point"] = _signed(weight.zeros, middle)
    return stored


def _signed(values: torch.Tensor, middle: int) -> torch.Tensor:
    return (values.to(torch.int16) - middle).to(torch.int8)


def _fp4(name: str, weight: QuantizedTensor) -> dict[str, torch.Tensor]:
    scale = weight.scales[0]
    stored = {"weight_packed": weight.codes[:, ::2] | weight.codes[:, 1::2] << 4}
    if weight.global_scale is None:
        narrow = scales_as(torch.float8_e8m0fnu, name, scale)
        return {**stored, "weight_scale": narrow.view(torch.uint8)}
    return {
        **stored,
        "weight_scale": scales_as(torch.float8_e4m3fn, name, scale),
        "weight_global_scale": (1 / weight.global_scale.float()).reshape(1),
    }


def weight_from(name: str, tensors: Tensors, grid: Grid) -> QuantizedTensor:
    """Return the weight of stored tensors, also of integers that are packed although squeeze would not pack them.

    Raises FormatError if tensors are missing or contradict the grid.
    """
    if grid.codebook in ("nvfp4", "mxfp4"):
        return _from_fp4(name, tensors, grid)
    if grid.codebook == "fp8":
        return _from_floats(name, tensors, grid)
    scales = take(name, tensors, "weight_scale")
    if scales.ndim != 2:
        raise FormatError(f"{name}: expected a matrix")
    if f"{name}.weight_packed" not in tensors and f"{name}.weight" in tensors:
        codes, zeros = _from_integers(name, tensors, grid, scales)
    else:
        codes, zeros = _from_packed(name, tensors, grid, scales)
    size = group_size_of(name, codes.shape[1], scales.shape[1], grid.group_size)
    weight = QuantizedTensor(codes, scales[None], zeros, grid.bits, size)
    return of_columns(name, "weight_g_idx", tensors, weight)


def _from_packed(
    name: str, tensors: Tensors, grid: Grid, scales: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    packed, shape = take(name, tensors, "weight_packed", torch.int32), take(name, tensors, "weight_shape")
    if shape.numel() != 2:
        raise FormatError(f"{name}: expected a matrix")
    outputs, inputs = (int(size) for size in shape.flatten().tolist())
    groups = scales.shape[1]
    expect(name, "weight_packed", packed, outputs, packing.words_for(inputs, grid.bits))
    expect(name, "weight_scale", scales, outputs, groups)
    zeros = None
    if not grid.symmetric:
        words = take(name, tensors, "weight_zero_point", torch.int32)
        expect(name, "weight_zero_point", words, packing.words_for(outputs, grid.bits), groups)
        zeros = packing.unpack(words.T.contiguous(), grid.bits, outputs).T.contiguous()
    return packing.unpack(packed, grid.bits, inputs), zeros


def _from_integers(
    name: str, tensors: Tensors, grid: Grid, scales: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    values = _matrix(name, tensors, "weight", torch.int8)
    expect(name, "weight_scale", scales, len(values), scales.shape[1])
    codes, zeros = _unsigned(name, values, grid.bits), None
    if not grid.symmetric:
        points = take(name, tensors, "weight_zero_point", torch.int8)
        expect(name, "weight_zero_point", points, *scales.shape)
        zeros = _unsigned(name, points, grid.bits)
    return codes, zeros


def _unsigned(name: str, values: torch.Tensor, bits: int) -> torch.Tensor:
    middle = 1 << (bits - 1)
    if values.numel() and not -middle <= int(values.min()) <= int(values.max()) < middle:
        raise FormatError(f"{name}: expected integers of {bits} bits, got larger ones")
    return (values.to(torch.int16) + middle).to(torch.uint8)


def _from_floats(name: str, tensors: Tensors, grid: Grid) -> QuantizedTensor:
    floats, scales = _matrix(name, tensors, "weight", torch.float8_e4m3fn), take(name, tensors, "weight_scale")
    (outputs, inputs), size = floats.shape, grid.inputs(floats.shape[1])
    groups = -(-inputs // size)
    if grid.rows == -1:
        if scales.numel() != 1:
            raise FormatError(f"{name}: expected one scale of the matrix, got {scales.numel()}")
        scales = scales.reshape(1, 1)
    expect(name, "weight_scale", scales, 1 if grid.rows == -1 else -(-outputs // grid.rows), groups)
    rows = scales.repeat_interleave(outputs if grid.rows == -1 else grid.rows, 0)[:outputs]
    codebook = FLOATS["fp8"].codebook
    return QuantizedTensor(floats.view(torch.uint8), rows[None].contiguous(), None, 8, size, codebook)


def _from_fp4(name: str, tensors: Tensors, grid: Grid) -> QuantizedTensor:
    packed, nvfp4 = _matrix(name, tensors, "weight_packed", torch.uint8), grid.codebook == "nvfp4"
    outputs, inputs = len(packed), 2 * packed.shape[1]
    stored = take(name, tensors, "weight_scale", torch.float8_e4m3fn if nvfp4 else torch.uint8)
    expect(name, "weight_scale", stored, outputs, -(-inputs // grid.group_size))
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(1)
    factor = None
    if nvfp4:
        whole = take(name, tensors, "weight_global_scale", torch.float32)
        expect(name, "weight_global_scale", whole, 1)
        factor = (1 / whole).reshape(())
        scales = stored.to(torch.float32)
    else:
        scales = stored.view(torch.float8_e8m0fnu).to(torch.float32)
    codebook = CODEBOOKS[str(grid.codebook)].codebook
    return QuantizedTensor(codes, scales[None], None, 4, grid.group_size, codebook, factor, None, 8)


def _matrix(name: str, tensors: Tensors, leaf: str, dtype: torch.dtype) -> torch.Tensor:
    tensor = take(name, tensors, leaf, dtype)
    if tensor.ndim != 2:
        raise FormatError(f"{name}: expected a matrix")
    return tensor
