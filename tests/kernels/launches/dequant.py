"""Typical launches of the kernel that expands codes, which promises the bits of its reference."""

from collections.abc import Iterator
from functools import partial

import torch

from squeeze.kernels.dequant import Packed, kernel
from tests.kernels.launches.launch import Launch, meta

__all__ = ["launches", "packed"]


def packed(outputs: int, inputs: int, bits: int, planes: int = 0) -> Packed:
    """Groups of 128, with zero points; or a codebook with so many planes, and a global scale."""
    words = meta(outputs, inputs * bits // 32, dtype=torch.int32)
    scales = meta(planes or 1, outputs, inputs // 128)
    if not planes:
        return Packed(words, scales, meta(outputs, inputs // 128, dtype=torch.uint8), bits, 128, inputs)
    codebook, whole = meta(planes, 1 << bits, dtype=torch.float32), meta(dtype=torch.float32)
    return Packed(words, scales, None, bits, 128, inputs, codebook, whole)


def launches() -> Iterator[Launch]:
    for name, weight in (
        ("4 bits", packed(4096, 4096, 4)),
        ("3 bits", packed(4096, 4096, 3)),
        ("a codebook of 4 bits, two planes", packed(4096, 4096, 4, planes=2)),
    ):
        yield Launch(
            name=f"dequant 4096x4096, {name}",
            run=partial(kernel.dequantize, weight, torch.bfloat16),
            exact=True,
        )
