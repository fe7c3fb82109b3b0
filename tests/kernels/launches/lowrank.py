"""Typical launches of the product with a pair of factors."""

from collections.abc import Iterator
from functools import partial

from squeeze.kernels.lowrank import kernel
from tests.kernels.launches.launch import Launch, meta

__all__ = ["launches"]


def launches() -> Iterator[Launch]:
    for rows in (1, 16):
        operands = meta(rows, 4096), meta(4096, 1024), meta(1024, 4096)
        yield Launch(
            name=f"lowrank 4096x4096, rank 1024, {rows} row{'s' * (rows > 1)}",
            run=partial(kernel.multiply, *operands),
        )
