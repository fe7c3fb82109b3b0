"""Quantised weights packed for kernels, and their dequantisation on the device that holds them.

`reference_dequantize` defines the values. On a GPU a Triton kernel computes the same bits.
"""

from dataclasses import dataclass, replace

import torch

from squeeze.checkpoint import quantized as packing
from squeeze.checkpoint.quantized import QuantizedTensor

__all__ = ["Packed", "dequantize", "reference_dequantize"]


@dataclass(frozen=True)
class Packed:
    """A quantised weight [O, I] whose codes are packed into words, without its outliers, which the caller adds.

    words: int32 [O, ceil(I bits / 32)], see checkpoint/quantized.py. scales: [P, O, G], P planes, G groups.
    zeros: zero points uint8 [O, G], or None for symmetric codes. codebook: float32 [P, levels] or None.
    global_scale: float32 [] or None.
    """

    words: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    bits: int
    group_size: int
    inputs: int
    codebook: torch.Tensor | None = None
    global_scale: torch.Tensor | None = None

    @classmethod
    def of(cls, weight: QuantizedTensor) -> "Packed":
        """Pack the codes of a quantised tensor."""
        return cls(
            packing.pack(weight.codes, weight.bits),
            *(weight.scales, weight.zeros, weight.bits, weight.group_size, weight.shape[1]),
            *(weight.codebook, weight.global_scale),
        )

    @property
    def outputs(self) -> int:
        """Output channels, O."""
        return self.words.shape[0]

    def rows(self, first: int, last: int) -> "Packed":
        """Return output channels `first` to `last`, the last one excluded."""
        zeros = None if self.zeros is None else self.zeros[first:last]
        return replace(self, words=self.words[first:last], scales=self.scales[:, first:last], zeros=zeros)

    def take(self, indices: torch.Tensor) -> "Packed":
        """Return some output channels, int64 [N], in this order."""
        zeros = None if self.zeros is None else self.zeros[indices]
        return replace(self, words=self.words[indices], scales=self.scales[:, indices], zeros=zeros)


def dequantize(packed: Packed, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return the weight [O, I], computed in float32 and rounded once to `dtype`."""
    if packed.words.device.type == "cpu":
        return reference_dequantize(packed, dtype)
    from squeeze.kernels.dequant import kernel  # triton is optional

    return kernel.dequantize(packed, dtype)


def reference_dequantize(packed: Packed, dtype: torch.dtype) -> torch.Tensor:
    """Dequantise in plain torch to [O, I]: the definition.

    A weight is (code - zero) * scale, or with codebooks the sum over planes of codebook[code] * scale; either is
    multiplied by the global scale.
    """
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
