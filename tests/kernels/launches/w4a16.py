"""Typical launches of the products with packed integers."""

from collections.abc import Iterator
from functools import partial

from squeeze.kernels.w4a16 import kernel
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
