"""A quantised weight matrix: what every method returns, every format stores and every kernel multiplies by.

Holds the values and says what they stand for; choosing them is left to the methods (rtn.py, gptq.py),
bit packing to formats/ and the kernels.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

__all__ = ["Nesting", "QuantizedTensor", "pack", "unpack", "words_for"]


class Nesting(Protocol):
    """How scales are stored."""

    @property
    def stored_bits(self) -> int: ...


@dataclass(frozen=True)
class QuantizedTensor:
    """A weight [O, I] as integers on a grid; input i belongs to group i // group_size, of which there are G.

    codes: uint8 [O, I], 0 .. levels - 1.
    scales: [P, O, G] in the dtype in which they are stored (float16, bfloat16, float32); P is 1 but for planes.
    zeros: uint8 [O, G], the code that stands for 0; None where the grid has no zero points: symmetric
        integers, whose zero is 2^(bits - 1), and codebooks.
    bits: stored for each code.
    group_size: inputs that share a scale; the last group may be shorter. I itself means one scale a row.
    codebook: float32 [P, levels], what each code stands for before its scale (NF4, MXFP4, NVFP4, ternary
        planes); None for integers. A weight is the sum over P of scales[p] * codebook[p, code].
    global_scale: float32 [], a factor of every weight, where the scales themselves are narrow (NVFP4).
    outliers: (int64 [K] inputs, [O, K] in the weight's own dtype) columns kept as they were; the codes
        below them count for nothing.
    scale_bits: bits that the format stores for one scale, where fewer than its dtype has (MXFP4: 8).
    nested: how a format stores the scales in two levels, where it does: an object with `stored_bits`, whose scales are
        `scales` already.
    input_range: float32 [], the largest magnitude of what the weight is multiplied with, where the format stores it
        as the scale of activations.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    bits: int
    group_size: int
    codebook: torch.Tensor | None = None
    global_scale: torch.Tensor | None = None
    outliers: tuple[torch.Tensor, torch.Tensor] | None = None
    scale_bits: int | None = None
    input_range: torch.Tensor | None = None
    nested: Nesting | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(O, I)."""
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def symmetric(self) -> bool:
        """Whether the grid is of integers without zero points."""
        return self.zeros is None and self.codebook is None

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """[O, I], computed in float32 and rounded once to `dtype`."""
        group = torch.arange(self.codes.shape[1], device=self.codes.device) // self.group_size
        if self.codebook is None:
            zero = 1 << (self.bits - 1) if self.zeros is None else self.zeros.to(torch.float32)[:, group]
            weight = (self.codes.to(torch.float32) - zero) * self.scales[0].to(torch.float32)[:, group]
        else:
            codes = self.codes.int()
            planes = zip(self.scales.to(torch.float32), self.codebook, strict=True)
            weight = torch.stack([scale[:, group] * values[codes] for scale, values in planes]).sum(0)
        if self.global_scale is not None:
            weight = weight * self.global_scale
        if self.outliers is not None:
            columns, values = self.outliers
            weight[:, columns] = values.to(torch.float32)
        return weight.to(dtype)

    @property
    def stored_bits(self) -> int:
        """Bits of all that it takes: codes, scales, zero points, global scale, outliers and their places."""
        scale_bits = self.scale_bits or 8 * self.scales.element_size()
        of_scales = self.nested.stored_bits if self.nested else self.scales.numel() * scale_bits
        total = self.codes.numel() * self.bits + of_scales
        if self.zeros is not None:
            total += self.zeros.numel() * self.bits
        if self.global_scale is not None:
            total += 32
        if self.outliers is not None:
            columns, values = self.outliers
            total += 32 * columns.numel() + 8 * values.numel() * values.element_size()
        return total


def words_for(count: int, bits: int) -> int:
    """Words that `count` codes take."""
    return -(-count * bits // 32)


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """uint8 [R, N], each below 2^bits -> int32 [R, words_for(N, bits)], zero padded."""
    rows, count = codes.shape
    blocks = -(-count // 32)
    padded = torch.nn.functional.pad(codes, (0, blocks * 32 - count)).view(rows, blocks, 32)
    words = torch.zeros((rows, blocks, bits), dtype=torch.int32, device=codes.device)
    for i in range(32):
        word, shift = divmod(i * bits, 32)
        field = padded[:, :, i].to(torch.int32)
        words[:, :, word] |= field << shift  # what does not fit falls off
        if shift + bits > 32:
            words[:, :, word + 1] |= field >> (32 - shift)
    return words.view(rows, blocks * bits)[:, : words_for(count, bits)].contiguous()


def unpack(words: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """int32 [R, words_for(count, bits)] -> uint8 [R, count]."""
    rows, blocks = words.shape[0], -(-count // 32)
    padded = torch.nn.functional.pad(words, (0, blocks * bits - words.shape[1])).view(rows, blocks, bits)
    codes = torch.empty((rows, blocks, 32), dtype=torch.uint8, device=words.device)
    for i in range(32):
        word, shift = divmod(i * bits, 32)
        field = padded[:, :, word] >> shift
        if shift + bits > 32:  # the sign of `field` fills the bits from 32 - shift on
            field = field & ((1 << (32 - shift)) - 1) | padded[:, :, word + 1] << (32 - shift)
        codes[:, :, i] = field & ((1 << bits) - 1)
    return codes.view(rows, blocks * 32)[:, :count].contiguous()
