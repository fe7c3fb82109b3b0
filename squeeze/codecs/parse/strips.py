"""The pixels in coded strips of TIFF files: the layout of each, and differences of pixels, which become pixels again.

Predictor 2 of TIFF writes each sample as the difference from the same one of the pixel to its left ("TIFF, revision
6.0", section 14).
"""

import io
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from squeeze.codecs.content import Content
from squeeze.codecs.image.layout import Layout
from squeeze.codecs.parse.protocol import Found, Wrapper
from squeeze.codecs.parse.room import Room
from squeeze.codecs.tiff import find_strips
from squeeze.errors import DamagedError
from squeeze.system.binary import read_exactly, read_varint, varint

__all__ = ["Differences", "Strip", "strips_in"]

_NONE, _LEFT = 1, 2  # predictors


class Strip(NamedTuple):
    """The layout of a strip or tile, and whether its samples are differences."""

    layout: Layout
    differs: bool

    def content(self, size: int) -> Content | None:
        """Return what `size` bytes of pixels are, or None if they have another layout."""
        is_whole = self.layout.is_possible(size) and size % self.layout.stride == 0
        return Content("image", 0, tuple(self.layout)) if is_whole else None


def strips_in(data: bytes) -> dict[int, Strip]:
    """Return the coded strips and tiles of TIFF files in data, by where they begin."""
    found = dict[int, Strip]()
    for start, page, predictor in find_strips(data):
        differs = predictor == _LEFT
        if page.bits in ((8, 16) if differs else (1, 2, 4, 8, 16)) and predictor in (_NONE, _LEFT):
            little = int(page.little and page.bits == 16)
            found[start] = Strip(Layout(page.width, page.bits, page.channels, int(page.indexed), 0, little), differs)
    return found


class Differences(Wrapper):
    """The differences of the pixels of all rows, of samples of 8 or 16 bits: named by a TIFF file, not looked for."""

    kind = 20
    name = "pixels as differences"

    def find(self, data: bytes) -> Iterator[int]:
        return iter(())

    def open(self, data: bytes, start: int, room: Room) -> Found | None:
        return None

    def undone(self, data: np.ndarray, strip: Strip) -> Found | None:
        """Return what is in uint8 `data`, which is a strip, or None if it has no whole rows."""
        content, form = strip.content(data.size), strip.layout
        if not content:
            return None
        samples = _samples(data, form.width, form.channels, form.bits, bool(form.little))
        pixels = np.cumsum(samples, axis=1, dtype=samples.dtype.newbyteorder("=")).astype(samples.dtype)
        extra = varint(form.width) + bytes([form.channels, form.bits, form.little])
        return Found(self.kind, 0, data.size, pixels.view(np.uint8).ravel(), None, extra, content)

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        file = io.BytesIO(extra)
        width = read_varint(file)[0]
        channels, bits, little = read_exactly(file, 3)
        row = width * channels * (bits // 8)
        if not 1 <= channels <= 4 or bits not in (8, 16) or little > 1 or not row or content.size % row or file.read(1):
            raise DamagedError("the rows of pixels are impossible: the file is damaged")
        samples = _samples(content, width, channels, bits, bool(little))
        differences = samples.copy()
        differences[:, 1:] = samples[:, 1:] - samples[:, :-1]
        return differences.view(np.uint8).ravel()


def _samples(data: np.ndarray, width: int, channels: int, bits: int, little: bool) -> np.ndarray:
    """Return the samples of bytes [rows, width, channels], of 8 or 16 bits."""
    kind = "u1" if bits == 8 else "<u2" if little else ">u2"
    return np.frombuffer(data.tobytes(), kind).reshape(-1, width, channels)
