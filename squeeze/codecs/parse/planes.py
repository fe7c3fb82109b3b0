"""The bytes of numbers in planes: first the highest bytes of all numbers, then their second ones, and so on.

HDF5 writes chunks so (the filter "shuffle"). TIFF writes rows of floats so, with each byte as the difference from the
one before (predictor 3, of Adobe's "TIFF Technical Note 3", 2005). Put together, the numbers are an array, whose model
predicts them as a whole.
"""

import io
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from squeeze.codecs.array.layout import WIDTHS, Layout
from squeeze.codecs.content import Content
from squeeze.codecs.parse.protocol import Found, Wrapper
from squeeze.codecs.parse.room import Room
from squeeze.errors import DamagedError
from squeeze.system.binary import read_exactly, read_varint, varint

__all__ = ["Numbers", "Planes"]

_MOST_STEP = 4  # bytes between a byte and the one that it is the difference from


class Numbers(NamedTuple):
    """The form of the numbers in a coded chunk or strip.

    Attributes:
        layout: The array that they are.
        planes: Whether bytes are in planes.
        row: Numbers of a row with planes of its own, or 0 for those of all.
        step: Bytes between a byte and the one that it is the difference from, or 0 for no differences.
    """

    layout: Layout
    planes: bool = False
    row: int = 0
    step: int = 0

    def fits(self, size: int) -> bool:
        """Return whether `size` bytes may be such numbers."""
        of_row = self.row * self.layout.width
        return size > 0 and size % self.layout.line == 0 and (not of_row or size % of_row == 0)


class Planes(Wrapper):
    """The bytes of numbers in planes: named by a file, not looked for."""

    kind = 27
    name = "numbers in planes"

    def find(self, data: bytes) -> Iterator[int]:
        return iter(())

    def open(self, data: bytes, start: int, room: Room) -> Found | None:
        return None

    def undone(self, data: np.ndarray, numbers: Numbers) -> Found:
        """Return what is in uint8 `data`, which are such numbers."""
        width, row = numbers.layout.width, numbers.row or data.size // numbers.layout.width
        rows = data.reshape(-1, row * width)
        if numbers.step:
            rows = np.cumsum(rows.reshape(len(rows), -1, numbers.step), 1, np.uint8)
        content = rows.reshape(-1, width, row).swapaxes(1, 2).ravel()
        extra = bytes([width, numbers.step]) + varint(numbers.row)
        kind = Content("array", 0, tuple(numbers.layout))
        return Found(self.kind, 0, data.size, content, None, extra, kind)

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        file = io.BytesIO(extra)
        width, step = read_exactly(file, 2)
        row = read_varint(file)[0] or content.size // max(width, 1)
        if width not in WIDTHS or step > _MOST_STEP or file.read(1) or not 0 < row * width <= content.size:
            raise _impossible()
        if content.size % (row * width) or (step and row % step):
            raise _impossible()
        rows = content.reshape(-1, row, width).swapaxes(1, 2).reshape(-1, row * width)
        if step:
            rows = np.concatenate([rows[:, :step], rows[:, step:] - rows[:, :-step]], 1)
        return rows.ravel()


def _impossible() -> DamagedError:
    return DamagedError("the rows of numbers are impossible: the file is damaged")
