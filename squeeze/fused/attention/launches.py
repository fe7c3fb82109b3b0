"""Typical launches of turns, heads and attention, of SmolLM2-135M: a step of 64 lanes, and a prefill."""

from collections.abc import Iterator
from functools import partial

import torch

from squeeze.fused.attention import BLOCK, Kept, Norms, Shape, Turns, kernel
from squeeze.fused.launch import Launch, meta
from squeeze.fused.product import Product

__all__ = ["launches"]

_SHAPE = Shape(heads=9, groups=3, size=64, window=128)
_SLOTS = BLOCK * (2 + _SHAPE.window)
_PARTS = ((_SHAPE.size,), torch.int8), ((), torch.float32)  # of what is kept of a slot


def launches() -> Iterator[Launch]:
    for name, lanes, n in (("a step of 64 lanes", 64, 1), ("512 positions of 8 lanes", 8, 512)):
        yield from _of(name, lanes, n)


def _of(name: str, lanes: int, n: int) -> Iterator[Launch]:
    shape, rows = _SHAPE, lanes * n
    table, positions = meta(2, 24, 32, dtype=torch.float64), meta(lanes, n, dtype=torch.int64)
    turned = Turns(*(meta(2, rows, 32, dtype=torch.float32) for _ in range(2)))
    yield Launch(
        name=f"turns, {name}",
        run=partial(kernel.turns, table, 1.0, positions, shape, 0),
        operands=(table, positions, turned.cosine),
        result=turned.sine,
        operations=0,
        trips=lambda arguments: (arguments["BITS"],),
        exact=True,
    )
    kept, written = (
        Kept(*(meta(2, lanes, shape.groups, slots, *size, dtype=of) for size, of in _PARTS)) for slots in (_SLOTS, n)
    )  # what heads write is all that they touch
    outputs = (shape.heads + 2 * shape.groups) * shape.size
    scales = (meta(size, dtype=torch.float32) for size in (rows, outputs))
    product = Product(meta(rows, outputs, dtype=torch.int32), *scales)
    integers = meta(rows, 2, shape.heads, shape.size, dtype=torch.int16)
    yield Launch(
        name=f"heads, {name}",
        run=partial(kernel.heads, product, shape, Norms(None, None, 1e-5), turned, positions, written),
        operands=(*product[:3], *turned, positions, *written),
        result=integers,
        operations=0,
        trips=lambda arguments: (),
        exact=True,
    )
    queries = kernel.Queries(integers, meta(rows, 2, shape.heads, dtype=torch.float32))
    yield Launch(
        name=f"attention, {name}",
        run=partial(kernel.attend, queries, shape, positions, kept),
        operands=(*queries, *kept, positions),
        result=meta(rows, shape.heads * shape.size, dtype=torch.float32),
        operations=2 * 2 * 2 * rows * shape.heads * shape.size * _SLOTS,  # scores and values, of 16 bits in two parts
        trips=lambda arguments: (-(-(arguments["slots"] - BLOCK) // arguments["SLOTS"]),) * 3,
        exact=True,
    )
