"""Pixels and numbers in coded strips of TIFF, images of PDF and chunks of HDF5: their layouts, and differences.

Predictor 2 of TIFF writes each sample as the difference from the same one of the pixel to its left ("TIFF, revision
6.0", section 14). Predictor 3 is that of planes.py.
"""

import io
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from squeeze.codecs import tiff
from squeeze.codecs.array import grids, layout as array
from squeeze.codecs.content import Content
from squeeze.codecs.hdf5 import find_chunks
from squeeze.codecs.image.layout import Layout
from squeeze.codecs.parse.fax.reading import ONE, TAGGED, TWO
from squeeze.codecs.parse.fax.wrapper import MOST_COLUMNS, Page
from squeeze.codecs.parse.pdf import find_images
from squeeze.codecs.parse.planes import Numbers
from squeeze.codecs.parse.protocol import Found, Wrapper
from squeeze.codecs.parse.room import Room
from squeeze.codecs.tiff import Page as TiffPage, find_faxes, find_strips
from squeeze.errors import DamagedError
from squeeze.system.binary import read_exactly, read_varint, varint

__all__ = ["Differences", "Strip", "strips_in"]

_NONE, _LEFT, _PLANES = 1, 2, 3  # predictors
_OF_BYTES, _DIMENSIONS = 2, {2: ONE, 3: ONE, 4: TWO}  # codings of facsimile in TIFF
_BITS = (1, 2, 4, 8, 16), (8, 16)  # of a sample, as it is and as a difference


class Strip(NamedTuple):
    """The pixels in a coded strip, tile or image.

    Attributes:
        layouts: The layouts that they may have.
        differs: Whether samples are differences from those of the pixel to the left.
        rows: The number of rows, or 0 for any.
        fax: How the strip is coded as a fax, or None.
        numbers: How it has numbers that are not those of an image, or None.
    """

    layouts: tuple[Layout, ...]
    differs: bool
    rows: int = 0
    fax: Page | None = None
    numbers: Numbers | None = None

    def layout(self, size: int) -> Layout | None:
        """Return the layout of `size` bytes of pixels, or None if they have another one."""
        for form in self.layouts:
            rows, rest = divmod(size, form.stride + form.filtered)
            if not rest and self.rows in (0, rows) and form.is_possible(size):
                return form
        return None


def strips_in(data: bytes) -> dict[int, Strip]:
    """Return the coded strips and tiles of TIFF files, images of PDF files and chunks of HDF5, by where they begin."""
    found = dict[int, Strip]()
    for start, page, predictor in find_strips(data):
        if numbers := _numbers_of_page(page, predictor):
            found[start] = Strip((), False, numbers=numbers)
            continue
        little = int(page.little and page.bits == 16)
        form = Layout(page.width, page.bits, page.channels, int(page.indexed), 0, little)
        if predictor in (_NONE, _LEFT):
            found[start] = Strip((form,), predictor == _LEFT)
    for start, fax in find_faxes(data):
        if fax.columns <= MOST_COLUMNS:
            dimensions = TAGGED if fax.is_mixed else _DIMENSIONS[fax.group]
            said = Page(fax.columns, fax.rows, dimensions, fax.group == _OF_BYTES, fax.is_reversed, fax.size)
            found[start] = Strip((Layout(fax.columns, 1, 1),), False, 0, said)
    for start, image in find_images(data):
        found[start] = Strip(image.layouts, image.predictor == _LEFT, 0 if image.fax else image.rows, image.fax)
    found = {start: strip for start, strip in found.items() if strip.numbers or _is_possible(strip)}
    for start, chunk in find_chunks(data):
        columns, across = grids.of_shape(list(chunk.shape))
        layout = array.Layout(chunk.width, columns, chunk.kind, int(chunk.big), 0, across)
        found.setdefault(start, Strip((), False, numbers=Numbers(layout, chunk.shuffled)))
    return found


def _is_possible(strip: Strip) -> bool:
    return strip.layouts[0].bits in _BITS[strip.differs]


def _numbers_of_page(page: TiffPage, predictor: int) -> Numbers | None:
    """Return how a strip of a page has numbers: floats, and integers of more than 16 bits without differences."""
    width = page.bits // 8
    if page.bits not in (16, 32, 64) or (page.bits == 16 and page.form != tiff.FLOAT) or predictor == _LEFT:
        return None
    kind = array.FLOAT if page.form == tiff.FLOAT else array.SIGNED if page.form == tiff.SIGNED else array.UNSIGNED
    columns, across = grids.of_shape([2, page.width, page.channels])
    if predictor == _PLANES and page.form == tiff.FLOAT:
        layout = array.Layout(width, columns, kind, 1, 0, across)
        return Numbers(layout, True, page.width * page.channels, page.channels)
    return Numbers(array.Layout(width, columns, kind, int(not page.little), 0, across)) if predictor == _NONE else None


class Differences(Wrapper):
    """The differences of the pixels of all rows, of samples of 8 or 16 bits: named by a file, not looked for."""

    kind = 20
    name = "pixels as differences"

    def find(self, data: bytes) -> Iterator[int]:
        return iter(())

    def open(self, data: bytes, start: int, room: Room) -> Found | None:
        return None

    def undone(self, data: np.ndarray, form: Layout) -> Found:
        """Return what is in uint8 `data`, whole rows of samples of 8 or 16 bits."""
        samples = _samples(data, form.width, form.channels, form.bits, bool(form.little))
        pixels = np.cumsum(samples, axis=1, dtype=samples.dtype.newbyteorder("=")).astype(samples.dtype)
        extra = varint(form.width) + bytes([form.channels, form.bits, form.little])
        return Found(
            self.kind, 0, data.size, pixels.view(np.uint8).ravel(), None, extra, Content("image", 0, tuple(form))
        )

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        file = io.BytesIO(extra)
        width = read_varint(file)[0]
        channels, bits, little = read_exactly(file, 3)
        row = width * channels * (bits // 8)
        is_known = 1 <= channels <= 4 and bits in (8, 16) and little <= 1 and not file.read(1)
        if not (is_known and 0 < row <= content.size) or content.size % row:
            raise DamagedError("the rows of pixels are impossible: the file is damaged")
        samples = _samples(content, width, channels, bits, bool(little))
        differences = samples.copy()
        differences[:, 1:] = samples[:, 1:] - samples[:, :-1]
        return differences.view(np.uint8).ravel()


def _samples(data: np.ndarray, width: int, channels: int, bits: int, little: bool) -> np.ndarray:
    """Return the samples of bytes [rows, width, channels], of 8 or 16 bits."""
    kind = "u1" if bits == 8 else "<u2" if little else ">u2"
    return np.frombuffer(data.tobytes(), kind).reshape(-1, width, channels)
