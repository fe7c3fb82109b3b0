"""Typical launches of the products with packed integers."""

from collections.abc import Iterator
from functools import partial

from squeeze.kernels.dequant.launches import packed
from squeeze.kernels.launch import Launch, meta, operations
from squeeze.kernels.w4a16 import kernel, reference

__all__ = ["launches"]


def launches() -> Iterator[Launch]:
    for product, rows, bits in ((kernel.gemv, 1, 4), (kernel.gemv, 4, 4), (kernel.gemm, 16, 4), (kernel.gemm, 16, 3)):
        weight, x = packed(4096, 4096, bits), meta(rows, 4096)
        assert weight.zeros is not None
        yield Launch(
            name=f"w4a16 {product.__name__} 4096x4096, {bits} bits, {rows} row{'s' * (rows > 1)}",
            run=partial(product, x, weight),
            operands=(x, weight.words, weight.scales, weight.zeros),
            result=meta(rows, 4096),
            operations=operations(partial(reference.matmul, x, weight)),
            trips=lambda arguments: (arguments["split_inputs"] // arguments["K"],),
        )
