"""The room for what may still be opened in a block. Hostile data takes time in proportion to its size, too."""

from dataclasses import dataclass

__all__ = ["Room"]

_FREE, _SHARE = 1 << 26, 64  # bytes that may be read in vain in any data, and for each of its bytes
_LEAST = 1 << 10  # bytes that an attempt counts as at least


@dataclass
class Room:
    """The room that is left.

    Attributes:
        content: Bytes of content.
        attempts: Bytes that may still be read in vain.
        encoder: The settings of the deflate stream that was opened last, or None.
    """

    content: int
    attempts: int = _FREE
    encoder: object = None

    @classmethod
    def of(cls, content: int, size: int) -> "Room":
        """Return the room for some bytes of content in a block of `size` bytes."""
        return cls(content, _FREE + _SHARE * size)

    def spend(self, size: int) -> None:
        """Count an attempt that read `size` bytes in vain."""
        self.attempts -= max(size, _LEAST)
