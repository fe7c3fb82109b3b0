"""The memory layout of models: records of named scalars, offsets from widths, and cache-aligned arrays."""

from itertools import accumulate
from typing import Any, TypeVar

import numpy as np

LINE = 64  # bytes of a cache line

Widths = TypeVar("Widths", bound="tuple[int, ...]")


def fields(integers: str, floats: str = "") -> np.dtype:
    """Return the dtype of a record of int64 and float32 scalars from their names, separated by spaces."""
    named = [(name, np.int64) for name in integers.split()] + [(name, np.float32) for name in floats.split()]
    return np.dtype(named, align=True)


def record(kind: np.dtype, **values: float) -> Any:
    """Return a zeroed record with some values set. Python and compiled code access `record.name` in the same memory."""
    instance = np.zeros(1, kind).view(np.recarray)[0]
    for name, value in values.items():
        instance[name] = value
    return instance


def offsets(widths: Widths) -> Widths:
    """Return where each of several consecutive parts begins, as the NamedTuple that `widths` is."""
    make: Any = type(widths)
    starts: Widths = make(*accumulate(widths[:-1], initial=0))
    return starts


def aligned_zeros(size: int) -> np.ndarray:
    """Return uint8 zeros that start at a cache line."""
    memory = np.zeros(size + LINE, np.uint8)
    skip = -memory.ctypes.data % LINE
    return memory[skip : skip + size]


def view_as(memory: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Return uint8 memory as an array of the dtype and shape of another. Raise ValueError if the sizes differ."""
    return memory.view(like.dtype).reshape(like.shape)


def widen_table(table: np.ndarray, size: int) -> np.ndarray:
    """Return a table with rows of at least `size`, a power of two, in which every hash finds what it found before."""
    return np.tile(table, (1, max(size // table.shape[1], 1)))
