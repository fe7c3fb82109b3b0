"""Typical launches of norms, of SmolLM2-135M's width and a model's of 7 billion parameters."""

from collections.abc import Iterator
from functools import partial

import torch

from squeeze.lm.fused import kernels
from squeeze.lm.fused.reference import Product
from tests.kernels.launches.launch import Launch, meta

__all__ = ["launches"]


def launches() -> Iterator[Launch]:
    for rows, width in ((64, 576), (1024, 4096)):
        x, out = meta(rows, width, dtype=torch.float32), meta(rows, width, dtype=torch.int8)
        product = Product(
            meta(rows, width, dtype=torch.int32),
            *(meta(size, dtype=torch.float32) for size in (rows, width)),
        )
        yield Launch(
            name=f"norm {rows} rows of {width}",
            run=partial(kernels.normalise, x, product, 1e-5, out),
            exact=True,
        )
