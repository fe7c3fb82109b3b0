"""Images without compression in TIFF files: their strips, if these follow each other."""

import re
import struct
from collections.abc import Iterator

from squeeze.codecs.image.layout import Layout

__all__ = ["find_tiff"]

_MARK = re.compile(rb"II\x2a\0|MM\0\x2a")
_TYPES = {1: "B", 3: "H", 4: "I"}  # bytes, shorts, longs
_MOST_PAGES, _MOST_VALUES = 1 << 8, 1 << 20
_MOST_PREFIX = 1 << 12  # bytes of a header that is coded with its image
_WIDTH, _HEIGHT, _BITS, _CODING, _COLOURS = 256, 257, 258, 259, 262  # tags
_STRIPS, _SAMPLES, _SIZES, _PLANAR = 273, 277, 279, 284


def find_tiff(raw: bytes) -> Iterator[tuple[int, int, Layout]]:
    """Yield (start, end, layout) of the images in TIFF files."""
    for match in _MARK.finditer(raw):
        start = match.start()
        for number, (offset, size, form) in enumerate(_pages(raw, start)):
            first = start + offset
            prefix = offset if number == 0 and offset <= _MOST_PREFIX else 0
            if first + min(size, form.stride) <= len(raw):
                yield first - prefix, min(first + size, len(raw)), form._replace(prefix=prefix)


def _pages(raw: bytes, start: int) -> Iterator[tuple[int, int, Layout]]:
    """Yield the offset, bytes and layout of the pages of the TIFF file that begins at `start`."""
    order = "<" if raw[start : start + 2] == b"II" else ">"
    seen = set[int]()
    place = _number(raw, start + 4, order)
    while 8 <= place < len(raw) - start and place not in seen and len(seen) < _MOST_PAGES:
        seen.add(place)
        tags, end = _tags(raw, start, start + place, order)
        if page := _page(tags, order == "<"):
            yield page
        place = _number(raw, end, order)


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


def _tags(raw: bytes, start: int, place: int, order: str) -> tuple[dict[int, tuple[int, ...]], int]:
    """Return the values of the tags that are listed at `place`, and where the list ends."""
    count, tags = _number(raw, place, order, "H"), dict[int, tuple[int, ...]]()
    for at in range(place + 2, min(place + 2 + 12 * count, len(raw) - 12), 12):
        tag, kind, values = struct.unpack_from(order + "HHI", raw, at)
        if kind in _TYPES and values <= _MOST_VALUES:
            form = order + _TYPES[kind] * values
            where = at + 8 if struct.calcsize(form) <= 4 else start + _number(raw, at + 8, order)
            if where + struct.calcsize(form) <= len(raw):
                tags[tag] = struct.unpack_from(form, raw, where)
    return tags, place + 2 + 12 * count


def _number(raw: bytes, place: int, order: str, kind: str = "I") -> int:
    """Return the number at a place, or 0 if the data ends before."""
    size = struct.calcsize(kind)
    return int(struct.unpack_from(order + kind, raw, place)[0]) if 0 <= place <= len(raw) - size else 0
