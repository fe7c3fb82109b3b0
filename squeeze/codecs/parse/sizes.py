"""Estimates of what a file holds when its wrappers are opened, from its headers alone."""

import io
import struct
from typing import BinaryIO

from squeeze.codecs.parse.room import most_opened

__all__ = ["opened_size"]

_TAIL = 1 << 16  # bytes at the end of a file in which the end of a zip archive is looked for
_END, _ENTRY = b"PK\5\6", b"PK\1\2"
_MOST_DIRECTORY = 1 << 24  # bytes of a central directory that is read
_DEFLATED = 8
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # of a PNG image, by its colour type


def opened_size(file: BinaryIO, size: int) -> int:
    """Estimate the bytes of a file with its wrappers opened: of zip archives, gzip files, PNG images and the
    first image of GIF files; else its size.

    Args:
        file: seekable, and left at its start.
        size: its bytes.
    """
    start = file.read(33)
    if start.startswith(b"PK"):
        content = _zip_content(file, size)
    elif start.startswith(b"\x1f\x8b\x08") and size >= 18:
        file.seek(-4, io.SEEK_END)
        content = int.from_bytes(file.read(4), "little")
    elif start.startswith((b"GIF87a", b"GIF89a")) and len(start) == 33:
        width, height = struct.unpack_from("<HH", start, 6)
        content = size + width * height
    elif start.startswith(b"\x89PNG\r\n\x1a\n") and len(start) == 33:
        width, height, bits, colour = struct.unpack_from(">IIBB", start, 16)
        content = height * (1 + (width * bits * _CHANNELS.get(colour, 1) + 7) // 8)
    else:
        content = 0
    file.seek(0)
    return max(size, content if content <= most_opened(size) else 0)


def _zip_content(file: BinaryIO, size: int) -> int:
    """Return the bytes of all members and around them by a zip archive's central directory, 0 without one."""
    file.seek(-min(size, _TAIL), io.SEEK_END)
    tail = file.read()
    end = tail.rfind(_END)
    if end < 0 or end + 22 > len(tail):
        return 0
    length, offset = struct.unpack_from("<II", tail, end + 12)
    if offset + length > size or length > _MOST_DIRECTORY:
        return 0
    file.seek(offset)
    directory, at, content = file.read(length), 0, size
    while directory.startswith(_ENTRY, at) and at + 46 <= length:
        method, coded, raw = struct.unpack_from("<H8xII", directory, at + 10)
        content += raw - coded if method == _DEFLATED else 0
        at += 46 + sum(struct.unpack_from("<HHH", directory, at + 28))
    return content
