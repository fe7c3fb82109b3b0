"""Typical launches of the sums of frequencies, of SmolLM2's vocabulary and Qwen's."""

from collections.abc import Iterator
from functools import partial

import torch

from squeeze.lm.fused import kernels
from squeeze.lm.fused.reference import Product
from tests.kernels.launches.launch import Launch, meta

__all__ = ["launches"]


def launches() -> Iterator[Launch]:
    for rows, leaves in ((64, 49152), (256, 151643)):
        of_rows, of_columns, bias = (meta(size, dtype=torch.float32) for size in (rows, leaves, leaves))
        product = Product(meta(rows, leaves, dtype=torch.int32), of_rows, of_columns, bias)
        yield Launch(
            name=f"counts {rows} rows of {leaves} leaves",
            run=partial(kernels.cumulate, product),
            exact=True,
        )
