"""How models lie in memory: scalars with names, offsets that follow from widths, arrays that start at a cache line."""

from itertools import accumulate
from typing import Any, TypeVar

import numpy as np

LINE = 64  # bytes of a cache line

Widths = TypeVar("Widths", bound="tuple[int, ...]")


def fields(integers: str, floats: str = "") -> np.dtype:
    """The type of a record of int64 and float32 scalars, given their names."""
    named = [(name, np.int64) for name in integers.split()] + [(name, np.float32) for name in floats.split()]
    return np.dtype(named, align=True)


def record(kind: np.dtype, **values: float) -> Any:
    """A record of zeros but for `values`: Python and compiled code read and write `record.name` in the same memory."""
    instance = np.zeros(1, kind).view(np.recarray)[0]
    for name, value in values.items():
        instance[name] = value
    return instance


def offsets(widths: Widths) -> Widths:
    """Where each of several parts begins, one after the other; `widths` is a NamedTuple, and so is the result."""
    make: Any = type(widths)
    begun: Widths = make(*accumulate(widths[:-1], initial=0))
    return begun


def aligned_zeros(size: int) -> np.ndarray:
    """uint8 zeros that start at a cache line."""
    memory = np.zeros(size + LINE, np.uint8)
    skip = -memory.ctypes.data % LINE
    return memory[skip : skip + size]


def seen_as(memory: np.ndarray, like: np.ndarray) -> np.ndarray:
    """uint8 memory as an array of the type and shape of another. Raises ValueError where it has another size."""
    return memory.view(like.dtype).reshape(like.shape)


def widened(table: np.ndarray, size: int) -> np.ndarray:
    """A copy with rows of at least `size`, a power of two, in which every hash finds what it found before."""
    return np.tile(table, (1, max(size // table.shape[1], 1)))
