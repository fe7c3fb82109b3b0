"""Images without compression in TIFF files: their strips, if these follow each other."""

import re
import struct
from collections.abc import Iterator
from itertools import chain

from squeeze.codecs.image.layout import Layout

__all__ = ["find_tiff"]

_MARKS = re.compile(rb"II\x2a\0"), re.compile(rb"MM\0\x2a")
_TYPES = {1: "B", 3: "H", 4: "I"}  # bytes, shorts, longs
_MOST_PAGES, _MOST_TAGS = 1 << 8, 1 << 9
_TAG = 12  # bytes
_FREE = 1 << 16  # bytes of lists that are read beyond those of the data
_MOST_PREFIX = 1 << 12  # bytes of a header that is coded with its image
_WIDTH, _HEIGHT, _BITS, _CODING, _COLOURS = 256, 257, 258, 259, 262  # tags
_STRIPS, _SAMPLES, _SIZES, _PLANAR = 273, 277, 279, 284
_WANTED = {_WIDTH, _HEIGHT, _BITS, _CODING, _COLOURS, _STRIPS, _SAMPLES, _SIZES, _PLANAR}


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


def find_tiff(raw: bytes) -> Iterator[tuple[int, int, Layout]]:
    """Yield (start, end, layout) of the images in TIFF files."""
    data = _Data(raw)
    for match in chain.from_iterable(mark.finditer(raw) for mark in _MARKS):
        start = match.start()
        for number, (offset, size, form) in enumerate(_pages(data, start)):
            first = start + offset
            prefix = offset if number == 0 and offset <= _MOST_PREFIX else 0
            if first + min(size, form.stride) <= len(raw):
                yield first - prefix, min(first + size, len(raw)), form._replace(prefix=prefix)


def _pages(data: _Data, start: int) -> Iterator[tuple[int, int, Layout]]:
    """Yield the offset, bytes and layout of the pages of the TIFF file that begins at `start`."""
    order = "<" if data.raw[start : start + 2] == b"II" else ">"
    seen = set[int]()
    place = data.number(start + 4, order + "I")
    while 8 <= place < len(data.raw) - start and place not in seen and len(seen) < _MOST_PAGES:
        seen.add(place)
        tags, end = _tags(data, start, start + place, order)
        if page := _page(tags, order == "<"):
            yield page
        place = data.number(end, order + "I")


def _page(tags: dict[int, tuple[int, ...]], little: bool) -> tuple[int, int, Layout] | None:
    """Return the offset, bytes and layout of a page without compression, whose strips follow each other, or None."""
    width, height, coding, colours, samples, planar = (
        (tags.get(tag) or (usual,))[0]
        for tag, usual in ((_WIDTH, 0), (_HEIGHT, 0), (_CODING, 1), (_COLOURS, 1), (_SAMPLES, 1), (_PLANAR, 1))
    )
    bits, strips, sizes = set(tags.get(_BITS, (1,))), tags.get(_STRIPS, ()), tags.get(_SIZES, ())
    if not strips or len(strips) != len(sizes) or coding != 1 or len(bits) != 1 or not 1 <= samples <= 4:
        return None
    if not bits <= {1, 2, 4, 8, 16} or not width or not height:
        return None
    if any(a + size != b for a, b, size in zip(strips, strips[1:], sizes, strict=False)):
        return None
    depth, channels = bits.pop(), samples if planar == 1 else 1
    form = Layout(width, depth, channels, int(colours == 3), 0, int(little and depth == 16))
    size = min(sum(sizes), form.stride * height * (samples if planar == 2 else 1))
    return strips[0], size, form


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
