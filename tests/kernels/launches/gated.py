"""Typical launches of gates, of SmolLM2-135M's feed-forward width and a model's of 7 billion parameters."""

from collections.abc import Iterator
from functools import partial

import torch

from squeeze.lm.fused import kernels
from squeeze.lm.fused.reference import Product
from squeeze.numerics.rotation import block_of
from tests.kernels.launches.launch import Launch, meta

__all__ = ["launches"]


def launches() -> Iterator[Launch]:
    for rows, width in ((64, 1536), (1024, 11008)):
        out = meta(rows, width, dtype=torch.int8)
        scales = (meta(size, dtype=torch.float32) for size in (rows, 2 * width))
        product = Product(meta(rows, 2 * width, dtype=torch.int32), *scales)
        yield Launch(
            name=f"gated {rows} rows of {width}",
            run=partial(kernels.gate, product, block_of(width), 1.0, out),
            exact=True,
        )
