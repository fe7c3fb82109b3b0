"""Typical launches of the products with packed integers."""

from collections.abc import Iterator
from functools import partial

import torch

from squeeze.kernels.w4a16 import kernel, order, panels
from squeeze.kernels.w4a16.order import Ordered
from tests.kernels.launches.dequant import packed
from tests.kernels.launches.launch import Launch, meta

__all__ = ["launches"]


def launches() -> Iterator[Launch]:
    for outputs, bits, rows in (
        *((4096, 4, rows) for rows in (1, 16, 64)),
        *((11008, 4, rows) for rows in (1, 16, 64)),
        *((4096, bits, rows) for bits in (2, 3, 8) for rows in (1, 16)),
    ):
        weight, x = packed(outputs, 4096, bits), meta(rows, 4096)
        yield Launch(
            name=f"w4a16 {outputs}x4096, {bits} bits, {rows} row{'s' * (rows > 1)}",
            run=partial(kernel.matmul, x, weight),
        )
    for outputs, rows in ((outputs, rows) for outputs in (4096, 11008) for rows in (1, 16, 64)):
        ordered, x = _ordered(outputs, 4096), meta(rows, 4096)
        tile = next(iter(panels.panels(rows, (outputs, 4096), kernel.processors_of(x.device), False).values()))
        yield Launch(
            name=f"w4a16 {outputs}x4096, reshuffled, {rows} row{'s' * (rows > 1)}",
            run=partial(panels.matmul, x, ordered, tile),
        )
    ordered = _ordered(4096, 4096)
    yield Launch(
        name="dequant 4096x4096, 4 bits, reshuffled",
        run=partial(panels.dequantize, ordered, torch.bfloat16),
        exact=True,
    )


def _ordered(outputs: int, inputs: int) -> Ordered:
    """Groups of 128, with zero points."""
    words = meta(*order.shape(outputs, inputs), dtype=torch.int32)
    scales, zeros = (meta(inputs // 128, len(words), order.BLOCK // 2, dtype=torch.int32) for _ in range(2))
    return Ordered(words, scales, zeros, 128, outputs, inputs, torch.bfloat16)
