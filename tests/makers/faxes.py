"""Facsimile in files: TIFF with strips, and PDF, made by the coder that is written from the specification."""

import struct

import numpy as np

from tests.makers import images
from tests.references import naive_fax

PIXELS = images.page(150, 60)
ROWS = np.packbits(PIXELS, axis=1).tobytes()
# The forms that files have, by name: the tags of TIFF or what PDF says, and the numbers of `coded`.
TIFFS = {
    "lines": ({259: 2}, (2, 0, 0)),
    "group 3": ({259: 3, 292: 0}, (1, 0, 0)),
    "group 3, filled": ({259: 3, 292: 4}, (3, 0, 0)),
    "group 3, mixed": ({259: 3, 292: 1}, (1, 5, 0)),
    "group 3, mixed, filled": ({259: 3, 292: 5}, (3, 3, 6)),
    "group 4": ({259: 4}, (0, 1, 2)),
    "reversed": ({259: 4, 266: 2}, (0, 1, 2)),
}
PDFS = {
    "group 4": (b"/K -1 /EndOfLine false", (0, 1, 2)),
    "group 4 without an end": (b"/K -1 /EndOfBlock false", (0, 1, 0)),
    "group 4, aligned": (b"/K -1 /EncodedByteAlign true", (2, 1, 0)),
    "group 3": (b"/K 0", (0, 0, 0)),
    "group 3, ends of lines": (b"/EndOfLine true", (1, 0, 6)),
    "group 3, mixed": (b"/K 4 /EndOfLine true", (1, 5, 6)),
}


def coded(pixels: np.ndarray, flags: int, period: int, ends: int) -> bytes:
    """Return the coding of uint8 [height, width] of 0 and 1."""
    return naive_fax.coded(["".join(map(str, row)) for row in pixels.tolist()], flags, period, ends)


def tiff(name: str, pixels: np.ndarray = PIXELS, strips: int = 2) -> bytes:
    """Return a TIFF file of one of the forms."""
    tags, numbers = TIFFS[name]
    height, width = pixels.shape
    each = -(-height // strips)
    parts = [coded(pixels[at : at + each], *numbers) for at in range(0, height, each)]
    if tags.get(266) == 2:
        parts = [bytes(int(f"{byte:08b}"[::-1], 2) for byte in part) for part in parts]
    body, places = b"II*\0" + bytes(4), []
    for part in parts:
        places.append(len(body))
        body += part
    found = {256: [width], 257: [height], 258: [1], 262: [0], 273: places, 277: [1], 278: [each]}
    found |= {279: [len(part) for part in parts], **{tag: [value] for tag, value in tags.items()}}
    start, entries, extra = len(body), b"", b""
    after = start + 2 + 12 * len(found) + 4
    for tag, values in sorted(found.items()):
        packed = struct.pack(f"<{len(values)}I", *values)
        if len(packed) > 4:
            packed, extra = struct.pack("<I", after + len(extra)), extra + packed
        entries += struct.pack("<HHI", tag, 4, len(values)) + packed
    body = body[:4] + struct.pack("<I", start) + body[8:]
    return body + struct.pack("<H", len(found)) + entries + bytes(4) + extra


def pdf(name: str, pixels: np.ndarray = PIXELS, filters: bytes = b"/CCITTFaxDecode") -> bytes:
    """Return an object of PDF of one of the forms."""
    says, numbers = PDFS[name]
    height, width = pixels.shape
    head = b"<< /Type /XObject /Subtype /Image /Width %d /Height %d /BitsPerComponent 1 /Filter %b" % (
        *(width, height, filters),
    )
    parameters = b" /DecodeParms << %b /Columns %d /Rows %d >> >>" % (says, width, height)
    return b"9 0 obj\n" + head + parameters + b"\nstream\r\n" + coded(pixels, *numbers) + b"\nendstream\nendobj\n"
