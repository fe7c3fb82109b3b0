"""Images without compression in data: BMP and DIB, PBM, PGM and PPM, TGA, TIFF, and NPY.

A wrong guess costs size, never correctness: what is found is coded as an image only if that makes it smaller.
"""

import math
import re
import struct
from collections.abc import Iterator
from itertools import chain

import numpy as np

from squeeze.codecs.image.layout import Layout
from squeeze.codecs.tiff import find_pages

__all__ = ["Found", "find"]

Found = tuple[int, int, Layout]  # where an image with its prefix begins and ends, and its layout
_LEAST = 1 << 10  # bytes of the smallest image within other data
_LEAST_REST = 64  # bytes after an image that do not pay for a block
_MOST_PREFIX = 1 << 12  # bytes of a header that is coded with its image
# Each begins with the size of the header, in full: what begins with known bytes is found faster.
_DIBS = [
    re.compile(size + rb"\0\0\0.{8}\x01\0[\x01\x04\x08\x10\x18\x20]\0[\0\3]\0\0\0", re.DOTALL)
    for size in (rb"\x28", rb"\x6c", rb"\x7c")
]
_GAP = rb"\s{1,16}(?:#[^\n]{0,100}\n\s{0,16}){0,3}"  # bounded, so that many marks take time in proportion
_PNM = re.compile(rb"P([56])%b(\d{1,7})%b(\d{1,7})%b(\d{1,5})\s" % (_GAP, _GAP, _GAP))
_NPY = re.compile(
    rb"\x93NUMPY[\x01-\x03]\0.{2,4}?\{'descr': '\|u1', 'fortran_order': False, "
    rb"'shape': \((\d{1,7}(?:, \d{1,7}){1,3})\), \}[ ]*\n",
    re.DOTALL,
)
_PBM = re.compile(rb"P(4)%b(\d{1,7})%b(\d{1,7})\s" % (_GAP, _GAP))


def find(data: np.ndarray) -> list[Found]:
    """Return the images in uint8 `data`, in order and apart from each other."""
    raw, done, apart = data.tobytes(), 0, list[Found]()
    for start, stop, form in sorted([*_dibs(raw), *_pnms(raw), *_tiffs(raw), *_tga(raw), *_npys(raw)]):
        end = stop if stop + _LEAST_REST < len(raw) else len(raw)
        if start >= done and end - start >= (_LEAST if start else 0) and form.is_possible(end - start):
            apart.append((start, end, form))
            done = end
    return apart


def _region(raw: bytes, start: int, first: int, rows: int, form: Layout) -> Iterator[Found]:
    """Yield the image whose header is at `start`, and whose rows begin at `first`, as far as the data has it."""
    size = rows * form.stride
    end = min(first + size, len(raw))
    if rows and size and end - first >= min(size, max(size // 16, form.stride)):
        if first - start > _MOST_PREFIX:
            start = first
        yield start, end, form._replace(prefix=first - start)


def _dibs(raw: bytes) -> Iterator[Found]:
    """Yield bitmaps of Windows with the header of a file or without it."""
    for match in chain.from_iterable(mark.finditer(raw) for mark in _DIBS):
        start = match.start()
        size, width, height, _, bits, coding, stored = struct.unpack_from("<IiiHHII", raw[start : start + 24].ljust(24))
        colours = int.from_bytes(raw[start + 32 : start + 36], "little")
        if coding == 3 and bits not in (16, 32):
            continue
        entries = min(colours, 256) or (1 << bits if bits <= 8 else 0)
        palette = start + size + (12 if coding == 3 and size == 40 else 0)
        first, rows = palette + 4 * entries, abs(height)
        row = (width * bits + 31) // 32 * 4 if 0 < width < 1 << 17 else 0
        if not row or rows > 1 << 17:
            continue
        if start >= 14 and raw[start - 14 : start - 12] == b"BM":
            start -= 14
            first = start + int.from_bytes(raw[start + 10 : start + 14], "little")
        elif rows == 2 * width or 0 < stored < row * rows:
            rows //= 2  # an icon, of which the mask follows
        channels = max(bits // 8, 1)
        is_grey = bits == 8 and _is_ramp(raw[palette : palette + 4 * entries])
        form = Layout(width, min(bits, 8), channels, int(bits <= 8 and not is_grey))
        yield from _region(raw, start, first, rows, form._replace(padding=row - form.row))


def _is_ramp(palette: bytes) -> bool:
    """Return whether the colours of a palette are greys from black to white."""
    return palette == b"".join(bytes([grey, grey, grey, 0]) for grey in range(256))


def _pnms(raw: bytes) -> Iterator[Found]:
    """Yield images of Netpbm."""
    for match in chain(_PNM.finditer(raw), _PBM.finditer(raw)):
        width, height, most = int(match[2]), int(match[3]), int(match[4]) if match.re is _PNM else 1
        bits = 1 if match.re is _PBM else 8 if most < 256 else 16
        if width and height and 0 < most < 1 << 16:
            yield from _region(
                raw, match.start(), match.end(), height, Layout(width, bits, 3 if match[1] == b"6" else 1)
            )


def _tiffs(raw: bytes) -> Iterator[Found]:
    """Yield the pages of TIFF files with samples of up to 16 bits."""
    for start, end, page in find_pages(raw):
        if page.bits in (1, 2, 4, 8, 16):
            little = int(page.little and page.bits == 16)
            form = Layout(page.width, page.bits, page.channels, int(page.indexed), 0, little)
            yield start, end, form._replace(prefix=page.offset)


def _npys(raw: bytes) -> Iterator[Found]:
    """Yield images of bytes in the format NPY, with up to four channels; several are one below the other."""
    for match in _NPY.finditer(raw):
        shape = [int(size) for size in match[1].split(b",")]
        channels = shape.pop() if len(shape) > 2 and shape[-1] <= 4 else 1
        width, rows = shape.pop(), math.prod(shape)
        if rows and width and channels:
            yield from _region(raw, match.start(), match.end(), rows, Layout(width, 8, channels))


def _tga(raw: bytes) -> Iterator[Found]:
    """Yield the TGA image that all of the data is."""
    if len(raw) < 18:
        return
    text, has_map, kind, _, entries, entry_bits, _, _, width, height, bits, flags = struct.unpack_from(
        "<BBBHHBHHHHBB", raw
    )
    first = 18 + text + has_map * entries * ((entry_bits + 7) // 8)
    size = first + width * height * (bits // 8)
    known = (kind, bits) in ((1, 8), (2, 16), (2, 24), (2, 32), (3, 8)) and has_map == (kind == 1) and not flags & 0xC0
    ends = size == len(raw) or (size < len(raw) and raw[-18:] == b"TRUEVISION-XFILE.\0")
    if known and ends and width and height:
        yield from _region(raw, 0, first, height, Layout(width, 8, bits // 8, int(kind == 1)))
