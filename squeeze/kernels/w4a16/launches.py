"""Typical launches of the products with packed integers."""

from collections.abc import Iterator, Mapping
from functools import partial

from squeeze.kernels.dequant.launches import packed
from squeeze.kernels.launch import Launch, meta, operations
from squeeze.kernels.w4a16 import kernel, reference

__all__ = ["launches"]


def launches() -> Iterator[Launch]:
    for outputs, bits, rows in (
        *((4096, 4, rows) for rows in (1, 16, 64)),
        *((11008, 4, rows) for rows in (1, 16, 64)),
        *((4096, bits, rows) for bits in (2, 3, 8) for rows in (1, 16)),
    ):
        weight, x = packed(outputs, 4096, bits), meta(rows, 4096)
        assert weight.zeros is not None
        yield Launch(
            name=f"w4a16 {outputs}x4096, {bits} bits, {rows} row{'s' * (rows > 1)}",
            run=partial(kernel.matmul, x, weight),
            operands=(x, weight.words, weight.scales, weight.zeros),
            result=meta(rows, outputs),
            operations=operations(partial(reference.matmul, x, weight)),
            trips=_trips,
        )


def _trips(arguments: Mapping[str, int]) -> tuple[int, ...]:
    if "K" in arguments:
        return (arguments["split_inputs"] // arguments["K"],)
    if "W" in arguments:
        return (arguments["split_groups"],)
    return (-(-arguments["groups"] // (arguments["S"] * arguments["B"])),)
