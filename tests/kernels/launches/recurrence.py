"""Typical launches of recurrences: those of a training of the small network of levels 5 and 6."""

from collections.abc import Iterator
from functools import partial

import torch

from squeeze.kernels.recurrence import kernel
from tests.kernels.launches.launch import Launch, meta

__all__ = ["launches"]

_BATCH, _TIME, _WIDTH = 768, 512, 160


def launches() -> Iterator[Launch]:
    decay, states = (meta(_BATCH, _TIME, _WIDTH, dtype=torch.float32) for _ in range(2))
    start = meta(_BATCH, _WIDTH, dtype=torch.float32)
    yield Launch(
        name=f"recurrence {_BATCH}x{_TIME}x{_WIDTH}",
        run=partial(kernel.forward, decay, states, start),
    )
    yield Launch(
        name=f"recurrence {_BATCH}x{_TIME}x{_WIDTH}, derivatives",
        run=partial(kernel.backward, decay, states, start, states),
    )
