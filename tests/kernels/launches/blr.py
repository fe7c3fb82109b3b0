"""Typical launches of the products with block low-rank matrices."""

from collections.abc import Iterator
from functools import partial

from squeeze.kernels.blr import kernel
from tests.kernels.launches.launch import Launch, meta

__all__ = ["launches"]


def launches() -> Iterator[Launch]:
    for rows in (1, 16):
        operands = meta(rows, 4096), meta(16, 256, 16 * 32), meta(16, 16 * 32, 256)
        yield Launch(
            name=f"blr monarch 4096x4096, 16x16 blocks of rank 32, {rows} row{'s' * (rows > 1)}",
            run=partial(kernel.monarch, *operands),
        )
