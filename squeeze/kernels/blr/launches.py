"""Typical launches of the products with block low-rank matrices."""

from collections.abc import Iterator, Mapping
from functools import partial

from squeeze.kernels.blr import kernel, reference
from squeeze.kernels.launch import Launch, meta, operations

__all__ = ["launches"]


def launches() -> Iterator[Launch]:
    for rows in (1, 16):
        operands = meta(rows, 4096), meta(16, 256, 16 * 32), meta(16, 16 * 32, 256)
        yield Launch(
            name=f"blr monarch 4096x4096, 16x16 blocks of rank 32, {rows} row{'s' * (rows > 1)}",
            run=partial(kernel.monarch, *operands),
            operands=operands,
            result=meta(rows, 4096),
            operations=operations(partial(reference.monarch, *operands)),
            trips=_of_monarch,
        )


def _of_monarch(arguments: Mapping[str, int]) -> tuple[int, ...]:
    columns, ranks = arguments["q_count"], -(-arguments["ranks"] // arguments["R"])
    return columns, columns * ranks, columns * ranks * -(-arguments["inputs"] // arguments["K"])
