"""A quantised weight matrix, which methods return, formats store and kernels multiply by; and codes packed in words.

Methods (rtn.py, gptq.py) choose the values. Packed codes of a row are a stream of bits, the first code in the lowest
ones. Words have 32 bits and are little-endian; codes straddle them if their bits do not divide 32 (3 bits: 32 codes in
3 words). Each row starts with a new word. All formats share this layout.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

__all__ = ["Nesting", "QuantizedTensor", "pack", "unpack", "words_for"]


class Nesting(Protocol):
    """Quantised scales."""

    @property
    def stored_bits(self) -> int: ...


@dataclass(frozen=True)
class QuantizedTensor:
    """A weight [O, I] as codes on a grid; input i belongs to group i // group_size, one of G.

    Attributes:
        codes: uint8 [O, I], 0 .. levels - 1.
        scales: [P, O, G] in the dtype in which they are stored (float16, bfloat16, float32); P is 1 except for planes.
        zeros: zero points uint8 [O, G], the codes of the weight 0; None for symmetric integers, whose zero is 2^(bits -
            1), and for codebooks.
        bits: stored for each code.
        group_size: inputs that share a scale; the last group may be shorter. I means one scale a row.
        codebook: values of codes before scaling, float32 [P, levels] (NF4, MXFP4, NVFP4, ternary planes); None for
            integers. A weight is the sum over P of scales[p] * codebook[p, code].
        global_scale: factor of every weight, float32 [], if scales are narrow (NVFP4).
        outliers: columns kept unquantised: int64 [K] inputs, and [O, K] in the weight's own dtype. Their codes are
            ignored.
        scale_bits: stored for one scale, if fewer than its dtype has (MXFP4: 8).
        input_range: largest magnitude of the inputs, a float [], if the format stores it as the scale of activations.
        nested: quantised form of the scales, with `stored_bits`; `scales` are its values.
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
        """The shape (O, I)."""
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def symmetric(self) -> bool:
        """True if the grid is of integers without zero points."""
        return self.zeros is None and self.codebook is None

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return the weight [O, I], computed in float32 and rounded once to `dtype`."""
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
        """The bits of codes, scales, zero points, global scale, and outliers with their places."""
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
    """Return the number of words for `count` codes."""
    return -(-count * bits // 32)


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack codes uint8 [R, N] below 2^bits into int32 [R, words_for(N, bits)], zero padded."""
    rows, count = codes.shape
    blocks = -(-count // 32)
    padded = torch.nn.functional.pad(codes, (0, blocks * 32 - count)).view(rows, blocks, 32)
    words = torch.zeros((rows, blocks, bits), dtype=torch.int32, device=codes.device)
    for i in range(32):
        word, shift = divmod(i * bits, 32)
        field = padded[:, :, i].to(torch.int32)
        words[:, :, word] |= field << shift  # the upper bits overflow
        if shift + bits > 32:
            words[:, :, word + 1] |= field >> (32 - shift)
    return words.view(rows, blocks * bits)[:, : words_for(count, bits)].contiguous()


def unpack(words: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """Unpack int32 [R, words_for(count, bits)] into codes uint8 [R, count]."""
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
