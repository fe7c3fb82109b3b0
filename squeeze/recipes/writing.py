"""How quantised matrices are stored in a folder: one of quant/formats/, or the values that they stand for."""

from collections.abc import Mapping
from typing import Any

import torch

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.engine.pipeline import Writer
from squeeze.errors import FormatError
from squeeze.quant.formats import FORMATS, Grid, QuantizationSpec
from squeeze.quant.method import GridMethod

__all__ = ["DENSE", "make_writer"]

DENSE = "dense"


def make_writer(name: str, method: GridMethod, methods: Mapping[str, GridMethod], checkpoint: Checkpoint) -> Writer:
    """A writer of one of the formats. Raises FormatError where it is unknown or cannot hold what the methods make."""
    dtype = checkpoint.float_type()
    if name == DENSE:
        return _dense(dtype)
    if name not in FORMATS:
        raise FormatError(f"format {name!r} is unknown: choose from {', '.join([DENSE, *FORMATS])}")
    chosen = FORMATS[name]
    chosen.check(_spec(method, methods, (), dtype))

    def tensors(module: str, tensor: QuantizedTensor, transposed: bool) -> dict[str, torch.Tensor]:
        if transposed and not chosen.transposed:
            able = [DENSE, *(one for one, format in FORMATS.items() if format.transposed)]
            raise FormatError(f"{module}: is stored transposed, which only the formats {' and '.join(able)} hold")
        return chosen.tensors(module, tensor, dtype)

    def config(left: list[str]) -> dict[str, Any]:
        return {"quantization_config": chosen.config(_spec(method, methods, tuple(left), dtype))}

    return Writer(name, tensors, config)


def _dense(dtype: torch.dtype) -> Writer:
    def tensors(module: str, tensor: QuantizedTensor, transposed: bool) -> dict[str, torch.Tensor]:
        values = tensor.dequantize(dtype)
        return {f"{module}.weight": values.T.contiguous() if transposed else values}

    return Writer(DENSE, tensors, lambda left: {})


def _spec(
    method: GridMethod, methods: Mapping[str, GridMethod], left: tuple[str, ...], dtype: torch.dtype
) -> QuantizationSpec:
    def grid(one: GridMethod) -> Grid:
        quantizer = one.as_quantizer()
        size = quantizer.group_size or one.group_size
        codebook = None if quantizer.codebook is None else one.grid.removesuffix("-planes")
        return Grid(quantizer.bits, size, one.symmetric, codebook, bool(getattr(one, "outliers", 0)))

    common = grid(method)
    other = {name: grid(one) for name, one in methods.items() if grid(one) != common}
    values = (common.bits, common.group_size, common.symmetric, common.codebook, common.outliers)
    return QuantizationSpec(*values, ignored=left, modules=other, dtype=dtype, method=method.name)
