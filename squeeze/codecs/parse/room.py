"""The room for what may still be opened in a block. Hostile data takes time in proportion to its size, too.

The content that is opened takes memory, and attempts that open nothing take time: each has a limit of its own.
"""

from dataclasses import dataclass

__all__ = ["FIELD", "MOST_OPENED", "STEP", "Room", "most_opened"]

MOST_OPENED = 1 << 26  # bytes of a block's content with its wrappers opened
_LEAST_OPENED, _MOST_RATIO = 1 << 22, 64  # bytes of content that may be opened in any data, and for each of its bytes
_FREE, _SHARE = 1 << 26, 64  # bytes that may be read in vain in any data, and for each of its bytes
_LEAST = 1 << 10  # bytes that an attempt counts as at least
FIELD = 1 << 6  # bytes that each field of a walk in vain counts as, of files whose fields have a few bytes
STEP = 1 << 9  # bytes that reading one field or block in Python counts as, whatever comes of it


def most_opened(size: int) -> int:
    """Return the most bytes of content that are opened in `size` bytes."""
    return min(MOST_OPENED, max(_LEAST_OPENED, _MOST_RATIO * size))


@dataclass
class Room:
    """The room that is left.

    Attributes:
        content: Bytes of content.
        attempts: Bytes that may still be read in vain.
        encoder: The settings of the deflate stream that was opened last, or None.
        looks: The encoder of the block of Snappy or LZ4 that was opened last.
    """

    content: int
    attempts: int = _FREE
    encoder: object = None
    looks: int = 0

    @classmethod
    def of(cls, size: int) -> "Room":
        """Return the room of a block of `size` bytes."""
        return cls(most_opened(size), _FREE + _SHARE * size)

    def spend(self, size: int) -> None:
        """Count an attempt that read `size` bytes in vain."""
        self.attempts -= max(size, _LEAST)
