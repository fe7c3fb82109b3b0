"""The definition: codes to weights in plain torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from squeeze.checkpoint import bits as packing

if TYPE_CHECKING:
    from squeeze.kernels.dequant import Packed


def dequantize(packed: Packed, dtype: torch.dtype) -> torch.Tensor:
    """[O, I]: (code - zero) * scale, or the sum over planes of codebook[code] * scale; times the global scale."""
    codes = packing.unpack(packed.words, packed.bits, packed.inputs)
    group = torch.arange(packed.inputs, device=codes.device) // packed.group_size
    scales = packed.scales.to(torch.float32)
    if packed.codebook is None:
        zero = 1 << (packed.bits - 1) if packed.zeros is None else packed.zeros.to(torch.float32)[:, group]
        weight = (codes.to(torch.float32) - zero) * scales[0][:, group]
    else:
        index = codes.long()
        weight = torch.zeros(codes.shape, device=codes.device)
        for scale, values in zip(scales, packed.codebook, strict=True):
            weight = weight + scale[:, group] * values[index]
    if packed.global_scale is not None:
        weight = weight * packed.global_scale
    return weight.to(dtype)
