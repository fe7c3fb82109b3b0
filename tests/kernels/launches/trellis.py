"""Typical launches of the kernel that decodes trellis codes, which promises the bits of its reference."""

from collections.abc import Iterator
from functools import partial

import torch

from squeeze.kernels.trellis import kernel
from squeeze.kernels.trellis.reference import column_bytes
from tests.kernels.launches.launch import Launch, meta

__all__ = ["launches"]


def launches() -> Iterator[Launch]:
    for rate in (32, 36):
        codes = meta(4096, column_bytes(4096, rate), dtype=torch.uint8)
        yield Launch(
            name=f"trellis 4096x4096, {rate / 16:g} bits",
            run=partial(kernel.decode, codes, 4096, rate),
            exact=True,
        )
