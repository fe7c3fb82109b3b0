"""The base class of media whose content is numbers of one layout behind a prefix of other bytes: arrays and sounds.

A wrong guess costs size, never correctness: what is found is coded by the medium only if that makes it smaller.
"""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np

from squeeze.codecs.content import Content, Medium, Progress, Region

__all__ = ["Found", "Numbers", "apart"]

Found = tuple[int, int, Any]  # where numbers with their prefix begin and end, and their layout
_LEAST = 1 << 10  # bytes of the smallest numbers with a header
_LEAST_REST = 64  # bytes after them that do not pay for a block
_FULL = 4  # the first level with the whole model


class Numbers(Medium):
    """Numbers with a layout, a named tuple with `prefix` and `is_possible`.

    Attributes:
        layout: The class of the layouts.
    """

    layout: Any

    @abstractmethod
    def named(self, data: bytes) -> Iterable[Found]:
        """Return the numbers in data that have a header, in any order."""

    @abstractmethod
    def bare(self, data: np.ndarray) -> Any:
        """Return the layout of uint8 `data` that are such numbers beyond doubt, or None."""

    @abstractmethod
    def unit(self, form: Any) -> tuple[int, int]:
        """Return the bytes of what a sample has whole, and how many of them it has at least."""

    def find(self, data: np.ndarray) -> list[Region]:
        found = apart(self.named(data.tobytes()), data.size)
        return [(start, end, Content(self.kind, 0, form)) for start, end, form in found]

    def guess(self, data: np.ndarray) -> Content | None:
        form = self.bare(data)
        return None if form is None else Content(self.kind, 0, form)

    def sample(self, size: int, content: Content, most: int) -> Region:
        form = self.layout(*content.form)
        unit, least = self.unit(form)
        wanted = max(most // unit, least) * unit
        if size - form.prefix <= wanted:
            return 0, size, content
        start = form.prefix + (size - form.prefix - wanted) // 2 // unit * unit
        return start, start + wanted, Content(self.kind, 0, form._replace(prefix=0))

    def encode(self, data: np.ndarray, content: Content, level: int, progress: Progress = None) -> bytes | None:
        payload: bytes | None = self.coder().encode(data, self.layout(*content.form), level >= _FULL, progress)
        return payload


def apart(named: Iterable[Found], size: int) -> list[Found]:
    """Return numbers in `size` bytes in order and apart from each other, with what is too short behind them."""
    done, found = 0, list[Found]()
    for start, stop, form in sorted(named):
        end = stop if stop + _LEAST_REST < size else size
        if start >= done and end - start >= _LEAST and form.is_possible(end - start):
            found.append((start, end, form))
            done = end
    return found
