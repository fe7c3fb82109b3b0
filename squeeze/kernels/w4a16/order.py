"""4-bit codes in the order in which tensor cores take them, as in MARLIN (Frantar et al., 2024): put so once, at load.

A matrix of 16 channels by 16 inputs is one operand of a product on tensor cores (mma.m16n8k16). Each thread of a warp
holds eight of its codes, in one word here. Four such words, of 64 inputs in all, lie beside each other for one thread,
and those of 32 threads after each other. So a warp reads 512 bytes that are contiguous, 16 a thread, and a program's
tile of 64 channels by 128 inputs is contiguous, too. What is missing to whole tiles is filled with codes of 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from squeeze.checkpoint import bits as packing
from squeeze.kernels.dequant import Packed

__all__ = ["BLOCK", "DTYPES", "STEP", "Ordered", "fits", "pairs", "reshuffle", "restore", "shape", "unpaired"]

BLOCK, STEP = 64, 128  # channels and inputs of a tile
WORDS = BLOCK * STEP // 8
DTYPES = (torch.float16, torch.bfloat16)  # of activations
_PIECE = 1 << 22  # codes that are reshuffled at a time
_SHORT = (32, 64)  # groups of which a tile has several


@dataclass(frozen=True)
class Ordered:
    """A quantised weight [O, I] of 4 bits, reshuffled.

    words: int32 [blocks of channels, tiles of inputs, WORDS]. scales, zeros: int32 [G, blocks of channels, BLOCK / 2],
    each 16 bits of a channel and, above these, of the one 8 further on. dtype: of scales.
    """

    words: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    group_size: int
    outputs: int
    inputs: int
    dtype: torch.dtype
    bits = 4

    @classmethod
    def of(cls, packed: Packed) -> Ordered:
        """Of a weight that fits."""
        zeros = None if packed.zeros is None else pairs(packed.zeros.to(torch.int16))
        words, scales = reshuffle(packed.words, packed.inputs), packed.scales[0]
        sizes = packed.group_size, packed.outputs, packed.inputs
        return cls(words, pairs(scales.view(torch.int16)), zeros, *sizes, scales.dtype)

    @property
    def parts(self) -> int:
        """Groups that lie in one tile."""
        return STEP // self.group_size if self.group_size in _SHORT and self.group_size < self.inputs else 1

    @property
    def span(self) -> int:
        """Tiles that a group takes, the last of which may be cut off."""
        return -(-self.group_size // STEP)

    def stored(self) -> Packed:
        """As it was before."""
        words = restore(self.words, self.outputs, self.inputs)
        scales = unpaired(self.scales, self.outputs).view(self.dtype)[None]
        zeros = None if self.zeros is None else unpaired(self.zeros, self.outputs).to(torch.uint8)
        return Packed(words, scales, zeros, 4, self.group_size, self.inputs)


def fits(packed: Packed, dtype: torch.dtype) -> bool:
    """Whether a weight has 4-bit codes of a uniform grid, in groups of 32, 64 or a multiple of 128 inputs, or of all,
    with scales of 16 bits; and there is a kernel for activations of a dtype."""
    if packed.bits != 4 or packed.codebook is not None or packed.global_scale is not None:
        return False
    if dtype not in DTYPES or packed.scales.dtype not in DTYPES:
        return False
    size = packed.group_size
    return packed.inputs > 0 and (size >= packed.inputs or size % STEP == 0 or size in _SHORT)


def shape(outputs: int, inputs: int) -> torch.Size:
    """Of reshuffled words."""
    return torch.Size((-(-outputs // BLOCK), -(-inputs // STEP), WORDS))


def reshuffle(words: torch.Tensor, inputs: int) -> torch.Tensor:
    """int32 [O, ceil(I / 8)] as stored -> int32 of `shape`."""
    ordered = words.new_empty(shape(len(words), inputs))
    across = ordered.shape[1]
    for first, last in _pieces(len(ordered), across):
        codes = packing.unpack(words[first * BLOCK : last * BLOCK], 4, inputs)
        missing = (last - first) * BLOCK - len(codes)
        codes = torch.nn.functional.pad(codes, (0, across * STEP - inputs, 0, missing))
        # of block, cell, h, g; tile, half, s, q, t, e
        codes = codes.view(last - first, 4, 2, 8, across, 2, 4, 2, 4, 2).permute(0, 4, 5, 1, 3, 8, 6, 9, 7, 2)
        ordered[first:last] = packing.pack(codes.reshape(-1, 8), 4).view(last - first, across, WORDS)
    return ordered


def restore(ordered: torch.Tensor, outputs: int, inputs: int) -> torch.Tensor:
    """The inverse of `reshuffle`."""
    across = ordered.shape[1]
    words = ordered.new_empty((outputs, packing.words_for(inputs, 4)))
    for first, last in _pieces(len(ordered), across):
        codes = packing.unpack(ordered[first:last].reshape(-1, 1), 4, 8)
        # of block, tile, half, cell, g, t, s; e, q, h
        codes = codes.view(last - first, across, 2, 4, 8, 4, 4, 2, 2, 2).permute(0, 3, 9, 4, 1, 2, 6, 8, 5, 7)
        codes = codes.reshape((last - first) * BLOCK, across * STEP)[: outputs - first * BLOCK, :inputs]
        words[first * BLOCK : last * BLOCK] = packing.pack(codes.contiguous(), 4)
    return words


def pairs(values: torch.Tensor) -> torch.Tensor:
    """int16 [O, G] of scales or zero points -> int32 [G, ceil(O / BLOCK), BLOCK / 2]."""
    (outputs, groups), blocks = values.shape, -(-len(values) // BLOCK)
    values = torch.nn.functional.pad(values, (0, 0, 0, blocks * BLOCK - outputs))
    values = values.view(blocks, BLOCK // 16, 2, 8, groups).permute(4, 0, 1, 3, 2)
    return values.reshape(groups, blocks, BLOCK).view(torch.int32)


def unpaired(words: torch.Tensor, outputs: int) -> torch.Tensor:
    """The inverse of `pairs`."""
    groups, blocks = words.shape[:2]
    values = words.view(torch.int16).reshape(groups, blocks, BLOCK // 16, 8, 2).permute(1, 2, 4, 3, 0)
    return values.reshape(blocks * BLOCK, groups)[:outputs].contiguous()


def _pieces(count: int, across: int) -> list[tuple[int, int]]:
    """First and last tiles of channels of each piece."""
    step = max(1, _PIECE // (BLOCK * STEP * max(across, 1)))
    return [(first, min(first + step, count)) for first in range(0, count, step)]
