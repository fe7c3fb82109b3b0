"""The protocol of wrappers: each kind knows where it may start, what is inside, and how the same bytes come of that."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from squeeze.codecs.parse.deflate.stream import Opened

__all__ = ["Found", "Wrapper"]


@dataclass(frozen=True)
class Found:
    """A wrapper at a place in data.

    Attributes:
        kind: Its number in WRAPPERS.
        start: Its first byte.
        size: Its bytes.
        content: What is in it, uint8.
        opened: The deflate stream in it, or None if it wraps text.
        extra: What closes it, without what closes the stream.
    """

    kind: int
    start: int
    size: int
    content: np.ndarray
    opened: Opened | None = None
    extra: bytes = b""


class Wrapper(Protocol):
    """A kind of wrapper."""

    kind: int
    name: str

    def find(self, data: bytes) -> Iterator[int]:
        """Yield the places where one may start."""
        ...

    def open(self, data: bytes, start: int, most: int) -> Found | None:
        """Open one that starts at a place of data, with at most `most` bytes of content."""
        ...

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        """Return its bytes from its content, the closed stream if it has one, and `extra`.

        Raises:
            DamagedError: if they are impossible.
        """
        ...
