"""Typical launches of rotary, heads and attention: of SmolLM2-135M, a step of 64 lanes and a prefill; of Qwen3-0.6B,
whose heads are larger, attention alone."""

from collections.abc import Iterator
from functools import partial

import torch

from squeeze.lm.fused.attention import BLOCK, LayerCache, Norms, Queries, Rotary, Shape, kernel
from squeeze.lm.fused.reference import Product
from tests.kernels.launches.launch import Launch, meta

__all__ = ["launches"]

_SMALL, _LARGE = Shape(heads=9, groups=3, size=64, window=128), Shape(heads=16, groups=8, size=128, window=128)


def launches() -> Iterator[Launch]:
    for name, lanes, n in (("a step of 64 lanes", 64, 1), ("512 positions of 8 lanes", 8, 512)):
        positions = meta(lanes, n, dtype=torch.int64)
        yield from _heads(name, positions)
        yield _attention(name, _SMALL, positions)
    yield _attention("a step of 64 lanes, heads of 128", _LARGE, meta(64, 1, dtype=torch.int64))


def _kept(shape: Shape, lanes: int, slots: int) -> LayerCache:
    sizes = 2, lanes, shape.groups, slots
    return LayerCache(meta(*sizes, shape.size, dtype=torch.int8), meta(*sizes, dtype=torch.float32))


def _heads(name: str, positions: torch.Tensor) -> Iterator[Launch]:
    shape, (lanes, n) = _SMALL, positions.shape
    rows, half, outputs = lanes * n, shape.size // 2, (shape.heads + 2 * shape.groups) * shape.size
    table = meta(2, 24, half, dtype=torch.float64)
    rotary = Rotary(*(meta(2, rows, half, dtype=torch.float32) for _ in range(2)))
    yield Launch(
        name=f"rotary, {name}",
        run=partial(kernel.rotary, table, 1.0, positions, shape, 0),
        exact=True,
    )
    scales = (meta(size, dtype=torch.float32) for size in (rows, outputs))
    product, written = Product(meta(rows, outputs, dtype=torch.int32), *scales), _kept(shape, lanes, n)
    yield Launch(
        name=f"heads, {name}",
        run=partial(kernel.heads, product, shape, Norms(None, None, 1e-5), rotary, positions, written),
        exact=True,
    )


def _attention(name: str, shape: Shape, positions: torch.Tensor) -> Launch:
    (lanes, n), slots = positions.shape, BLOCK * (2 + shape.window)
    rows, kept = lanes * n, _kept(shape, lanes, slots)
    sizes = rows, 2, shape.heads
    queries = Queries(meta(*sizes, shape.size, dtype=torch.int16), meta(*sizes, dtype=torch.float32))
    return Launch(
        name=f"attention, {name}",
        run=partial(kernel.attend, queries, shape, positions, kept),
        exact=True,
    )
