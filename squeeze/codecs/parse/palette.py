"""Colours of images with a palette: their numbers are exchanged for ranks by brightness.

What is known of colours is in the bytes before the image. Ranks of similar colours are near each other, as those of
greys are, so that the predictions of the model of images hold for them. What closes the image names its palette.
"""

import io
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from squeeze.codecs.parse.protocol import Found
from squeeze.errors import DamagedError
from squeeze.system.binary import read_varint, varint

__all__ = ["FARTHEST", "Palette", "ranked", "ranks_of"]

FARTHEST = 1 << 20  # bytes between a palette and its image
MOST_COLOURS = 256
_NEARER = 0.97  # share of the differences of numbers up to which ranks pay
_BRIGHTNESS = np.array([299, 587, 114], np.int64)  # of red, green and blue (ITU-R BT.601)


class Palette(NamedTuple):
    """The place of a palette, and the bytes of an image that are numbers of its colours.

    Attributes:
        distance: Bytes from its end to the wrapper.
        colours: Their number, 1 to 256, each with bytes for red, green and blue.
        row: Bytes of a row of which the first is a filter, or 0 if all bytes are numbers.
    """

    distance: int
    colours: int
    row: int = 0

    @property
    def size(self) -> int:
        """The bytes of the palette."""
        return 3 * self.colours

    def to_bytes(self) -> bytes:
        """Return what `read` reads."""
        return varint(self.distance) + bytes([self.colours - 1]) + varint(self.row)

    @classmethod
    def read(cls, extra: bytes) -> tuple["Palette", bytes]:
        """Read the palette that begins what closes an image, and return it with the rest.

        Raises:
            DamagedError: if it is impossible.
        """
        file = io.BytesIO(extra)
        distance, colours, row = read_varint(file)[0], file.read(1), read_varint(file)[0]
        if distance > FARTHEST or not colours:
            raise DamagedError("the palette of an image is impossible: the file is damaged")
        return cls(distance, colours[0] + 1, row), file.read()

    def exchanged(self, content: np.ndarray, table: np.ndarray) -> np.ndarray:
        """Return uint8 `content` with the numbers of colours exchanged by a table, uint8 [256].

        Raises:
            DamagedError: if it is not in whole rows.
        """
        exchanged: np.ndarray = table[content]
        if not self.row:
            return exchanged
        if content.size % self.row:
            raise DamagedError("the rows of an image with a palette are cut: the file is damaged")
        rows = exchanged.reshape(-1, self.row)
        rows[:, 0] = content[:: self.row]
        return exchanged


def ranks_of(colours: np.ndarray) -> np.ndarray:
    """Return the rank of each number, uint8 [256]: dark colours are first, and numbers without a colour last.

    Args:
        colours: uint8, red, green and blue of each colour.
    """
    order = np.argsort(colours.reshape(-1, 3) @ _BRIGHTNESS, kind="stable")
    ranks = np.arange(MOST_COLOURS, dtype=np.uint8)
    ranks[order] = np.arange(order.size)
    return ranks


def ranked(found: Found, kind: int, palette: Palette, colours: bytes, row: int) -> Found:
    """Return an opened image with ranks, or as it is if they are not clearly nearer to their neighbours than numbers.

    Args:
        found: the image.
        kind: the number of its wrapper with a palette.
        palette: that palette.
        colours: its bytes.
        row: bytes of a row.
    """
    end = found.start - palette.distance
    place = end - palette.size, end
    ranks = palette.exchanged(found.content, ranks_of(np.frombuffer(colours, np.uint8)))
    if _differences(ranks, row) >= _NEARER * _differences(found.content, row):
        return found
    return replace(found, kind=kind, content=ranks, extra=palette.to_bytes() + found.extra, colours=place)


def _differences(pixels: np.ndarray, row: int) -> float:
    """Return how pixels differ from the median of their neighbours and a plane through them, by logarithms."""
    rows = pixels[: pixels.size // row * row].reshape(-1, row).astype(np.int64)
    above, left, corner = rows[:-1, 1:], rows[1:, :-1], rows[:-1, :-1]
    low, high = np.minimum(above, left), np.maximum(above, left)
    expected = np.maximum(low, np.minimum(high, above + left - corner))
    return float(np.log2(1 + np.abs(rows[1:, 1:] - expected)).sum())
