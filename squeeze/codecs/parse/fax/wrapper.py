"""Facsimile in TIFF and PDF: CCITT groups 3 and 4, whose content is rows of one bit for each pixel, 1 for black."""

import io
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from squeeze.codecs.content import Content
from squeeze.codecs.image.layout import Layout
from squeeze.codecs.parse.fax.reading import ALIGNED, END_OF_LINE, EOL_BITS, MARGIN, MOST_ENDS, ONE, TWO, read
from squeeze.codecs.parse.fax.writing import Form, write
from squeeze.codecs.parse.protocol import Found, Wrapper
from squeeze.codecs.parse.room import Room
from squeeze.errors import DamagedError
from squeeze.system.binary import read_exactly, read_varint, varint

__all__ = ["MOST_COLUMNS", "Fax", "Page"]

MOST_COLUMNS = 1 << 16
_MOST_ROWS = 1 << 20
_REVERSED = 4  # flag of an extra: low bits come first
_BITS_REVERSED = np.packbits(np.unpackbits(np.arange(256, dtype=np.uint8)).reshape(256, 8)[:, ::-1], axis=1).ravel()
_COST = 4  # bytes that a pixel of a row takes in lists of changes, in time as if it was read


class Page(NamedTuple):
    """The description of a facsimile in a file.

    Attributes:
        columns: Pixels of a row.
        rows: Their number, or 0 if it is not known.
        dimensions: Those of rows: ONE, TWO or TAGGED, as `read` takes them.
        is_aligned: Whether rows begin with whole bytes.
        is_reversed: Whether low bits come first.
        size: Bytes that it has at most, or 0 if that is not known.
    """

    columns: int
    rows: int
    dimensions: int
    is_aligned: bool = False
    is_reversed: bool = False
    size: int = 0


class Fax(Wrapper):
    """The rows of a facsimile, whose page a file describes, and which is not looked for."""

    kind = 21
    name = "fax"

    def __init__(self, page: Page | None = None):
        self._page = page

    def find(self, data: bytes) -> Iterator[int]:
        return iter(())

    def open(self, data: bytes, start: int, room: Room) -> Found | None:
        page = self._page
        if page is None:
            return None
        stream = np.frombuffer(data, np.uint8)[start : start + page.size if page.size else None]
        if page.is_reversed:
            room.spend(stream.size)
            stream = _BITS_REVERSED[stream]
        form, pixels = _read(stream, page, room.content)
        if not len(pixels):
            room.spend(_COST * page.columns)
            return None
        closed = write(pixels, form)
        last = int(closed[-1] ^ stream[closed.size - 1]) if closed.size <= stream.size else 0
        flags = form.flags + _REVERSED * page.is_reversed
        extra = varint(form.columns) + bytes([flags]) + varint(form.period) + bytes([form.ends, last])
        content = pixels.ravel()
        layout = Content("image", 0, tuple(Layout(form.columns, 1, 1)))
        found = Found(self.kind, start, closed.size, content, None, extra, layout)
        return self.proven(found, data, room, _COST * page.columns + 2 * content.size)

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        file = io.BytesIO(extra)
        columns, flags, period = read_varint(file)[0], read_exactly(file, 1)[0], read_varint(file)[0]
        ends, last = read_exactly(file, 2)
        form = Form(columns, flags % _REVERSED, min(period, _MOST_ROWS + 2), ends)
        is_known = 1 <= columns <= MOST_COLUMNS and flags < 2 * _REVERSED and ends <= MOST_ENDS and not file.read(1)
        if not (is_known and content.size) or content.size % form.row:
            raise DamagedError("the rows of a fax are impossible: the file is damaged")
        closed = write(content.reshape(-1, form.row), form)
        closed[-1] ^= last
        return _BITS_REVERSED[closed] if flags & _REVERSED else closed


def _read(stream: np.ndarray, page: Page, most: int) -> tuple[Form, np.ndarray]:
    """Return the form and the rows of a page, uint8 [rows, bytes], of at most `most` bytes."""
    has_ends = page.dimensions != TWO and not np.unpackbits(stream[:2])[: EOL_BITS - 1].any()
    flags = END_OF_LINE if has_ends else ALIGNED * page.is_aligned
    row = (page.columns + 7) // 8
    pixels = np.zeros((min(page.rows or _MOST_ROWS, most // row, 8 * stream.size), row), np.uint8)
    tags, found = np.zeros(len(pixels), np.uint8), np.zeros(5, np.int64)
    lines = np.zeros((2, page.columns + MARGIN), np.int64)
    rows = read(stream, page.dimensions, flags, page.columns, pixels, lines, tags, found)
    if has_ends and found[3]:
        flags |= ALIGNED
    period = {ONE: 0, TWO: 1}.get(page.dimensions)
    if period is None:
        singles = np.flatnonzero(tags[:rows])
        period = 1 + int(singles[1] if singles.size > 1 else max(rows, 1))
    return Form(page.columns, flags, period, int(found[4])), pixels[:rows]
