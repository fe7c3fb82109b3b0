"""Arrays of numbers: in files of NPY, FITS, TIFF and HDF5, and data that are numbers beyond doubt (raw.py)."""

import re
from collections.abc import Iterator

import numpy as np

from squeeze.codecs import tiff
from squeeze.codecs.array import grids
from squeeze.codecs.array.fits import find_fits
from squeeze.codecs.array.layout import FLOAT, SIGNED, UNSIGNED, Layout
from squeeze.codecs.array.raw import find_raw
from squeeze.codecs.content import Content
from squeeze.codecs.hdf5 import find_arrays
from squeeze.codecs.numbers import Found, Numbers

__all__ = ["Array"]

_NPY = re.compile(
    rb"\x93NUMPY[\x01-\x03]\0.{2,4}?\{'descr': '([<>|])([uifV])([248])', 'fortran_order': (False|True), "
    rb"'shape': \((\d{0,19}(?:, ?\d{1,19}){0,32},?)\), \}[ ]*\n",
    re.DOTALL,
)
_BFLOAT = 2  # bytes of a bfloat16, for which NPY has no name: ml_dtypes writes it as void
_KINDS = {b"u": UNSIGNED, b"i": SIGNED, b"f": FLOAT, b"V": FLOAT}


class Array(Numbers):
    """Integers and floats of 16, 32 and 64 bits that follow each other, or in columns."""

    block, kind, module, layout = 11, "array", "squeeze.codecs.array.coder", Layout

    def named(self, data: bytes) -> list[Found]:
        return [*_npys(data), *find_fits(data), *_tiffs(data), *_of_hdf5(data)]

    def bare(self, data: np.ndarray) -> Layout | None:
        return find_raw(data)

    def unit(self, form: Layout) -> tuple[int, int]:
        return form.line, 2 if form.across else 1

    def joins(self, size: int, content: Content) -> bool:
        form = Layout(*content.form)
        return not form.prefix and size % form.line == 0


def _npys(raw: bytes) -> Iterator[Found]:
    """Yield the arrays in the format NPY."""
    for match in _NPY.finditer(raw):
        shape = [int(number) for number in match[5].replace(b" ", b"").split(b",") if number]
        width = size = int(match[3])
        if match[2] == b"V" and width != _BFLOAT:
            continue
        for number in shape:
            size = min(size * number, len(raw))
        columns, across = grids.of_shape(shape if match[4] == b"False" else shape[::-1])
        form = Layout(width, columns, _KINDS[match[2]], int(match[1] == b">"), match.end() - match.start(), across)
        yield match.start(), min(match.end() + size, len(raw)), form


def _of_hdf5(raw: bytes) -> Iterator[Found]:
    """Yield the arrays in HDF5 files that are stored in one piece."""
    for start, end, numbers in find_arrays(raw):
        columns, across = grids.of_shape(list(numbers.shape))
        yield start, end, Layout(numbers.width, columns, numbers.kind, int(numbers.big), 0, across)


def _tiffs(raw: bytes) -> Iterator[Found]:
    """Yield the pages of TIFF files with samples of 32 and 64 bits, such as heights in GeoTIFF."""
    for start, end, page in tiff.find_pages(raw):
        if page.bits in (32, 64):
            kind = FLOAT if page.form == tiff.FLOAT else SIGNED if page.form == tiff.SIGNED else UNSIGNED
            columns, across = grids.of_shape([2, page.width, page.channels])
            yield start, end, Layout(page.bits // 8, columns, kind, int(not page.little), page.offset, across)
