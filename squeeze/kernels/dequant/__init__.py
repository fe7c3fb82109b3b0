"""Packed weights and their expansion where they lie: Triton on a GPU, torch on the CPU. reference.py defines it."""

from dataclasses import dataclass, replace

import torch

from squeeze.checkpoint import bits as packing
from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.kernels.dequant import reference

__all__ = ["Packed", "dequantize"]


@dataclass(frozen=True)
class Packed:
    """A quantised weight [O, I] as kernels take it: its codes in words, all else as QuantizedTensor has it.

    words: int32 [O, ceil(I bits / 32)], see formats/bits.py. scales: [P, O, G]. zeros: uint8 [O, G] or None.
    codebook: float32 [P, levels] or None. global_scale: float32 [] or None. Outliers are for the caller to add.
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
        return cls(
            packing.pack(weight.codes, weight.bits),
            *(weight.scales, weight.zeros, weight.bits, weight.group_size, weight.shape[1]),
            *(weight.codebook, weight.global_scale),
        )

    @property
    def outputs(self) -> int:
        return self.words.shape[0]

    def rows(self, first: int, last: int) -> "Packed":
        """Output channels first to last."""
        zeros = None if self.zeros is None else self.zeros[first:last]
        return replace(self, words=self.words[first:last], scales=self.scales[:, first:last], zeros=zeros)


def dequantize(packed: Packed, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The weight [O, I], computed in float32 and rounded once to `dtype`."""
    if packed.words.device.type == "cpu":
        return reference.dequantize(packed, dtype)
    from squeeze.kernels.dequant import kernel

    return kernel.dequantize(packed, dtype)
