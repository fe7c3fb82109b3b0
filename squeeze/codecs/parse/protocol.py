"""The base class of wrappers. Each kind knows where it may start, what is inside, and how it is closed again."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from squeeze.codecs.content import Content, Region
from squeeze.codecs.parse.deflate.stream import Opened
from squeeze.codecs.parse.room import Room

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
        content_kind: The kind of its content if the wrapper says so, else None.
        regions: Regions of its content whose kind the wrapper says, in order and apart from each other.
        colours: Where the palette before it begins and ends whose ranks are in the content, if any.
    """

    kind: int
    start: int
    size: int
    content: np.ndarray
    opened: Opened | None = None
    extra: bytes = b""
    content_kind: Content | None = None
    regions: tuple[Region, ...] = ()
    colours: tuple[int, int] | None = None


class Wrapper(ABC):
    """A kind of wrapper: its number in files, its name, and the pattern that it starts with."""

    kind: int
    name: str
    mark: re.Pattern[bytes]
    is_certain = False  # whether each that is opened pays, without a trial
    least = 0  # bytes of the smallest that pays
    least_copied = 0.75  # share of it from which copies of earlier bytes replace it
    has_palette = False  # whether its content has ranks of colours (palette.py), and its extra begins with a palette
    keeps_header = False  # whether its content begins with the header that it has itself

    def find(self, data: bytes) -> Iterator[int]:
        """Yield the places where one may start."""
        return (match.start() for match in self.mark.finditer(data))

    @abstractmethod
    def open(self, data: bytes, start: int, room: Room) -> Found | None:
        """Open one that starts at a place of data, if there is room for its content.

        Closing what it returns gives the same bytes again. Attempts in vain are counted.
        """

    def proven(self, found: Found, data: bytes, room: Room, cost: int) -> Found | None:
        """Return a wrapper if closing it gives its bytes again and it is not too small, else count the attempt.

        Args:
            found: a wrapper without a stream.
            data: the bytes in which it was found.
            room: the room for its content.
            cost: bytes that the attempt counts as.
        """
        if found.size >= self.least and found.content.size <= room.content:
            closed = self.close(found.content, found.content[:0], found.extra)
            if closed.tobytes() == data[found.start : found.start + found.size]:
                return found
        room.spend(cost)
        return None

    def kind_name(self, extra: bytes) -> str:
        """Return what one with an `extra` is, for people."""
        return self.name

    def title(self, extra: bytes, number: int) -> str:
        """Return the name for people of one with an `extra`, which is one of several of its kind."""
        return f"{self.name} {number}"

    def segments(self, content: np.ndarray, extra: bytes) -> list[tuple[int, int, str]]:
        """Return the starts, ends and names of what is in the content of one with an `extra`, for people."""
        return []

    @abstractmethod
    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        """Return its bytes from its content, the closed stream if it has one, and `extra`.

        Raises:
            DamagedError: if they are impossible.
        """
