"""Typical launches of the product with a pair of factors."""

from collections.abc import Iterator
from functools import partial

from squeeze.kernels.launch import Launch, meta, operations
from squeeze.kernels.lowrank import kernel, reference

__all__ = ["launches"]


def launches() -> Iterator[Launch]:
    for rows in (1, 16):
        operands = meta(rows, 4096), meta(4096, 1024), meta(1024, 4096)
        yield Launch(
            name=f"lowrank 4096x4096, rank 1024, {rows} row{'s' * (rows > 1)}",
            run=partial(kernel.multiply, *operands),
            operands=operands,
            result=meta(rows, 4096),
            operations=operations(partial(reference.multiply, *operands)),
            trips=lambda arguments: (arguments["inputs"] // arguments["K"], arguments["outputs"] // arguments["K"]),
        )
