"""The pages of TIFF files: those without compression whose strips or tiles follow each other, and coded strips.
Facsimile has some numbers of its own.

The format is that of Adobe's "TIFF, revision 6.0" (1992), and of its supplement on deflate (2002).
"""

import re
import struct
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

__all__ = ["FLOAT", "SIGNED", "Fax", "Page", "find_faxes", "find_pages", "find_strips"]

_MARKS = re.compile(rb"II\x2a\0"), re.compile(rb"MM\0\x2a")
_TYPES = {1: "B", 3: "H", 4: "I"}  # bytes, shorts, longs
_MOST_PAGES, _MOST_TAGS = 1 << 8, 1 << 9
_TAG = 12  # bytes
_FREE = 1 << 16  # bytes of lists that are read beyond those of the data
_LEAST_STRIP = 48  # bytes of a coded strip that pays, on average
_MOST_PREFIX = 1 << 12  # bytes of a header that is coded with its image
_WIDTH, _HEIGHT, _BITS, _CODING, _COLOURS, _ORDER = 256, 257, 258, 259, 262, 266  # tags
_STRIPS, _SAMPLES, _ROWS, _SIZES, _PLANAR, _OPTIONS = 273, 277, 278, 279, 284, 292
_PREDICTOR, _TILE_WIDTH, _TILE_HEIGHT, _TILES, _TILE_SIZES, _FORMAT = 317, 322, 323, 324, 325, 339
_WANTED = {_WIDTH, _HEIGHT, _BITS, _CODING, _COLOURS, _STRIPS, _SAMPLES, _SIZES, _PLANAR}
_WANTED |= {_ORDER, _ROWS, _OPTIONS}  # of facsimile
_WANTED |= {_PREDICTOR, _TILE_WIDTH, _TILE_HEIGHT, _TILES, _TILE_SIZES, _FORMAT}
_PLAIN, _CODED = 1, (5, 8, 32946)  # codings: none; LZW, and two numbers of deflate
_FAX, _GROUP3, _LOW_FIRST = (2, 3, 4), 3, 2  # codings of facsimile, and an order of bits
SIGNED, FLOAT = 2, 3  # formats of samples
_PALETTE = 3  # a kind of colours


class Page(NamedTuple):
    """The samples of a page, whose rows are those of its tiles, one below the other, if it has tiles.

    Attributes:
        offset: Bytes before the first sample.
        size: Bytes of all samples.
        width: Pixels of a row.
        bits: Bits of a sample.
        channels: Samples of a pixel that follow each other.
        indexed: Whether samples are numbers of a palette.
        little: Whether the low byte of a sample comes first.
        form: SIGNED, FLOAT, or 1 for samples without a sign.
    """

    offset: int
    size: int
    width: int
    bits: int
    channels: int
    indexed: bool
    little: bool
    form: int

    @property
    def row(self) -> int:
        """The bytes of a row."""
        return (self.width * self.bits * self.channels + 7) // 8


class Fax(NamedTuple):
    """A strip or tile that is coded as a facsimile.

    Attributes:
        size: Its bytes.
        columns: Pixels of a row.
        rows: Their number.
        group: 4 or 3; 2 for rows of group 3 that begin with whole bytes.
        is_mixed: Whether rows of two dimensions are among those of group 3.
        is_reversed: Whether low bits come first.
    """

    size: int
    columns: int
    rows: int
    group: int
    is_mixed: bool
    is_reversed: bool


class _Data:
    """The data in which files are looked for, and the bytes of lists that may still be read.

    Many files may name the same list, but all of them together are read as if no two did.
    """

    def __init__(self, raw: bytes):
        self.raw, self._left = raw, len(raw) + _FREE

    def values(self, form: str, place: int) -> tuple[int, ...]:
        """Return the values at a place, or none if the data ends before, or too much was read."""
        size = struct.calcsize(form)
        if place < 0 or place + size > len(self.raw) or self._left < size:
            return ()
        self._left -= size
        return struct.unpack_from(form, self.raw, place)

    def number(self, place: int, form: str) -> int:
        """Return the number at a place, or 0 as `values` returns none."""
        return (self.values(form, place) or (0,))[0]


def find_pages(raw: bytes) -> Iterator[tuple[int, int, Page]]:
    """Yield (start, end, page) of the samples of pages in TIFF files.

    The first page of a file begins with the file's header, if that is short.
    """
    data = _Data(raw)
    for match in chain.from_iterable(mark.finditer(raw) for mark in _MARKS):
        start = match.start()
        pages = (_page(tags, little) for tags, little in _folders(data, start))
        for number, page in enumerate(page for page in pages if page):
            first = start + page.offset
            prefix = page.offset if number == 0 and page.offset <= _MOST_PREFIX else 0
            if first + min(page.size, page.row) <= len(raw):
                yield first - prefix, min(first + page.size, len(raw)), page._replace(offset=prefix)


def find_strips(raw: bytes) -> Iterator[tuple[int, Page, int]]:
    """Yield (start, page, predictor) of the strips or tiles that are coded by LZW or deflate, whose sizes are 0.

    With predictor 2, samples are differences from those of the pixel before. A place is found once, and there are at
    most as many as strips that pay, whatever the lists say.
    """
    data, seen = _Data(raw), set[int]()
    for match in chain.from_iterable(mark.finditer(raw) for mark in _MARKS):
        for tags, little in _folders(data, match.start()):
            if _first(tags, _CODING, _PLAIN) in _CODED and (page := _samples(tags, little)):
                predictor = _first(tags, _PREDICTOR, 1)
                for place in sorted(match.start() + place for place in set(_places(tags))):
                    if place < len(raw) and place not in seen and len(seen) < len(raw) // _LEAST_STRIP:
                        seen.add(place)
                        yield place, page, predictor


def find_faxes(raw: bytes) -> Iterator[tuple[int, Fax]]:
    """Yield (start, fax) of the strips and tiles of facsimile; the limits are those of `find_strips`."""
    data, seen = _Data(raw), set[int]()
    for match in chain.from_iterable(mark.finditer(raw) for mark in _MARKS):
        for tags, _ in _folders(data, match.start()):
            for place, fax in _faxes(tags) if _first(tags, _CODING, _PLAIN) in _FAX else ():
                start = match.start() + place
                if start + fax.size <= len(raw) and start not in seen and len(seen) < len(raw) // _LEAST_STRIP:
                    seen.add(start)
                    yield start, fax


def _faxes(tags: dict[int, tuple[int, ...]]) -> Iterator[tuple[int, Fax]]:
    """Yield the offset of each strip or tile of a page, and what its tags say of it."""
    has_tiles, height = _TILES in tags, _first(tags, _HEIGHT, 0)
    columns = _first(tags, _TILE_WIDTH if has_tiles else _WIDTH, 0)
    each = _first(tags, _TILE_HEIGHT if has_tiles else _ROWS, height)
    if _first(tags, _BITS, 1) != 1 or _first(tags, _SAMPLES, 1) != 1 or not columns:
        return
    group, is_reversed = _first(tags, _CODING, _PLAIN), _first(tags, _ORDER, 1) == _LOW_FIRST
    is_mixed = group == _GROUP3 and bool(_first(tags, _OPTIONS, 0) & 1)
    sizes = tags.get(_TILE_SIZES if has_tiles else _SIZES, ())
    for number, (place, size) in enumerate(zip(_places(tags), sizes, strict=False)):
        rows = each if has_tiles else min(each, height - number * each)
        if size > 0 and rows > 0:
            yield place, Fax(size, columns, rows, group, is_mixed, is_reversed)


def _folders(data: _Data, start: int) -> Iterator[tuple[dict[int, tuple[int, ...]], bool]]:
    """Yield the tags of each page of the TIFF file that begins at `start`, and whether low bytes are first."""
    order = "<" if data.raw[start : start + 2] == b"II" else ">"
    seen = set[int]()
    place = data.number(start + 4, order + "I")
    while 8 <= place < len(data.raw) - start and place not in seen and len(seen) < _MOST_PAGES:
        seen.add(place)
        tags, end = _tags(data, start, start + place, order)
        yield tags, order == "<"
        place = data.number(end, order + "I")


def _first(tags: dict[int, tuple[int, ...]], tag: int, usual: int) -> int:
    """Return the first value of a tag."""
    return (tags.get(tag) or (usual,))[0]


def _places(tags: dict[int, tuple[int, ...]]) -> tuple[int, ...]:
    """Return where the strips or tiles of a page are, with offsets from the start of the file."""
    return tags.get(_TILES if _TILES in tags else _STRIPS, ())


def _samples(tags: dict[int, tuple[int, ...]], little: bool) -> Page | None:
    """Return how the samples of a page lie in its strips or tiles, without place and size, or None if that differs."""
    samples, width = _first(tags, _SAMPLES, 1), _first(tags, _TILE_WIDTH if _TILES in tags else _WIDTH, 0)
    bits = set(tags.get(_BITS, (1,)))
    if len(bits) != 1 or not 1 <= samples <= 4 or not width:
        return None
    channels = samples if _first(tags, _PLANAR, 1) == 1 else 1
    indexed = _first(tags, _COLOURS, 1) == _PALETTE
    return Page(0, 0, width, bits.pop(), channels, indexed, little, _first(tags, _FORMAT, 1))


def _page(tags: dict[int, tuple[int, ...]], little: bool) -> Page | None:
    """Return a page without compression, whose strips or tiles follow each other, or None."""
    page, places, has_tiles = _samples(tags, little), _places(tags), _TILES in tags
    sizes = tags.get(_TILE_SIZES if has_tiles else _SIZES, ())
    height = _first(tags, _TILE_HEIGHT, 0) * len(places) if has_tiles else _first(tags, _HEIGHT, 0)
    if not page or not places or len(places) != len(sizes) or _first(tags, _CODING, _PLAIN) != _PLAIN or not height:
        return None
    if any(a + size != b for a, b, size in zip(places, places[1:], sizes, strict=False)):
        return None
    planes = 1 if has_tiles else _first(tags, _SAMPLES, 1) // page.channels
    return page._replace(offset=places[0], size=min(sum(sizes), page.row * height * planes))


def _tags(data: _Data, start: int, place: int, order: str) -> tuple[dict[int, tuple[int, ...]], int]:
    """Return the values of the tags that are listed at `place`, and where the list ends."""
    count, tags = data.number(place, order + "H"), dict[int, tuple[int, ...]]()
    for at in range(place + 2, place + 2 + _TAG * min(count, _MOST_TAGS), _TAG):
        found = data.values(order + "HHI", at)
        if not found:
            break
        tag, kind, number = found
        if tag in _WANTED and tag not in tags and kind in _TYPES:
            form = f"{order}{number}{_TYPES[kind]}"
            where = at + 8 if struct.calcsize(form) <= 4 else start + data.number(at + 8, order + "I")
            tags[tag] = data.values(form, where)
    return tags, place + 2 + _TAG * count
