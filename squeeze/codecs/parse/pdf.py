"""Images in PDF files: where their streams begin, and what their dictionaries say of the pixels (ISO 32000-1, 8.9.5).

The dictionary of an image is read only if it lies in front of its stream; numbers that are elsewhere are not looked up.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from squeeze.codecs.image.layout import Layout
from squeeze.codecs.parse.fax.reading import ONE, TAGGED, TWO
from squeeze.codecs.parse.fax.wrapper import MOST_COLUMNS, Page

__all__ = ["Image", "find_images"]

_MOST = 1 << 10  # bytes of a dictionary, before and after the mark
_MARK = re.compile(rb"/Subtype\s{0,4}/Image\b")
_STREAM = re.compile(rb"stream\r?\n")
_CHANNELS = {b"Gray": (1,), b"Indexed": (1,), b"ImageMask": (1,), b"RGB": (3,), b"CMYK": (4,)}
_NUMBERS = {
    name: re.compile(rb"/%b\s{0,4}(-?\d{1,6})\b(?!\s\d{1,3}\sR)" % name)
    for name in (b"Width", b"Height", b"BitsPerComponent", b"Predictor", b"K", b"Columns")
}
_ALIGNED = re.compile(rb"/EncodedByteAlign\s{0,4}true")
_USUAL_COLUMNS = 1728  # of a fax


class Image(NamedTuple):
    """Pixels in a stream, as the dictionary of an image describes them.

    Attributes:
        layouts: The layouts that they may have.
        rows: Their number.
        predictor: 1 for none, 2 for differences as in TIFF; with PNG's filters, the layouts say so.
        fax: What is said of a facsimile, or None.
    """

    layouts: tuple[Layout, ...]
    rows: int
    predictor: int
    fax: Page | None = None


def find_images(data: bytes) -> Iterator[tuple[int, Image]]:
    """Yield the start of the stream of each image in PDF files whose pixels are coded by deflate, LZW or as a fax."""
    for match in _MARK.finditer(data):
        stream = _STREAM.search(data, match.end(), match.end() + _MOST)
        start = data.rfind(b"obj", max(match.start() - _MOST, 0), match.start())
        if stream and start >= 0 and (image := _image(data[start : stream.start()])):
            yield stream.end(), image


def _image(dictionary: bytes) -> Image | None:
    numbers = {name: int(found[1]) for name, mark in _NUMBERS.items() if (found := mark.search(dictionary))}
    bits = 1 if b"/ImageMask true" in dictionary else numbers.get(b"BitsPerComponent", 8)
    width, rows, predictor = numbers.get(b"Width", 0), numbers.get(b"Height", 0), numbers.get(b"Predictor", 1)
    if b"/CCITTFaxDecode" in dictionary:
        return _fax(dictionary, numbers.get(b"Columns", _USUAL_COLUMNS), rows, numbers.get(b"K", 0))
    if width <= 0 or rows <= 0 or bits not in (1, 2, 4, 8, 16) or not 1 <= predictor <= 15:
        return None
    channels = next((known for name, known in _CHANNELS.items() if name in dictionary), (1, 3, 4))
    indexed, filtered = int(b"/Indexed" in dictionary), int(predictor >= 10)
    layouts = tuple(Layout(width, bits, count, indexed, filtered) for count in channels)
    return Image(layouts, rows, 1 if filtered else predictor)


def _fax(dictionary: bytes, columns: int, rows: int, k: int) -> Image | None:
    """Return the image that a fax is, or None if its columns or rows are impossible.

    Args:
        dictionary: that of the image.
        columns: pixels of a row.
        rows: their number, or 0 if it is not known.
        k: below 0 for group 4, 0 for group 3, above 0 for group 3 with rows of two dimensions among others.
    """
    if not 1 <= columns <= MOST_COLUMNS or rows < 0:
        return None
    page = Page(columns, rows, TWO if k < 0 else TAGGED if k else ONE, bool(_ALIGNED.search(dictionary)))
    return Image((Layout(columns, 1, 1),), rows, 1, page)
