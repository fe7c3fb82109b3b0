"""Typical launches of the products with 2:4 weights."""

from collections.abc import Iterator
from functools import partial

import torch

from squeeze.kernels.sparse24 import Packed24, kernel
from tests.kernels.launches.launch import Launch, meta

__all__ = ["launches"]


def _packed(outputs: int, inputs: int, bits: int) -> Packed24:
    places = meta(outputs, inputs // 32, dtype=torch.int32)
    if bits == 16:
        return Packed24(meta(outputs, inputs // 2), places, inputs)
    groups = outputs, inputs // 128
    values = meta(outputs, inputs // 16, dtype=torch.int32)
    return Packed24(values, places, inputs, meta(*groups), meta(*groups, dtype=torch.uint8), 128)


def launches() -> Iterator[Launch]:
    for product, rows in ((kernel.gemv, 1), (kernel.gemm, 16)):
        for bits in (16, 4):
            weight, x = _packed(4096, 4096, bits), meta(rows, 4096)
            yield Launch(
                name=f"sparse24 {product.__name__} 4096x4096, {bits} bits, {rows} row{'s' * (rows > 1)}",
                run=partial(product, x, weight),
            )
