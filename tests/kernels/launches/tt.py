"""Typical launches of the product with a TT-matrix of two cores."""

from collections.abc import Iterator
from functools import partial

from squeeze.kernels.tt import kernel
from tests.kernels.launches.launch import Launch, meta

__all__ = ["launches"]


def launches() -> Iterator[Launch]:
    for rows in (1, 16):
        x, cores = meta(rows, 4096), [meta(1, 64, 64, 256), meta(256, 64, 64, 1)]
        yield Launch(
            name=f"tt 4096x4096, two cores of rank 256, {rows} row{'s' * (rows > 1)}",
            run=partial(kernel.multiply, x, cores),
        )
