"""Closing of Android executables, written from docs/format.md, section 21.22."""

import hashlib
import zlib

from tests.references.reading import Bytes

_FORMS = [((4,), 0), ((4, 4, 4), 1), ((2, 2, 4), 0), ((2, 2, 4), 0), ((32,), None)]


def close(content: bytes, extra: bytes) -> bytes:
    """Return the executable with a content."""
    file = Bytes(extra)
    before, size, sums = file.varint(), file.varint(), file.take(24)
    end = len(content) - size
    head, rest = content[:84], Bytes(content[84:end])
    number = lambda k: int.from_bytes(head[4 + 4 * k : 8 + 4 * k], "little")  # noqa: E731
    tables = b"".join(_table(rest, number(8 + 2 * k), *form) for k, form in enumerate(_FORMS))
    data = rest.take(rest.rest)
    at, places, items = 112 + 4 * number(6) + len(tables) + before, b"", b""
    for name in content[end:].translate(bytes.maketrans(b"\0\n", b"\n\0")).split(b"\0")[:-1]:
        places += (at + len(items)).to_bytes(4, "little")
        items += _varint(sum(byte & 0xC0 != 0x80 for byte in name)) + name + b"\0"
    last = head[4:] + places + tables + data[:before] + items + data[before:]
    digest = hashlib.sha1(last).digest()
    return b"dex\n" + head[:4] + (sums or zlib.adler32(digest + last).to_bytes(4, "little") + digest) + last


def _table(file: Bytes, rows: int, widths: tuple[int, ...], ascends: int | None) -> bytes:
    out, last = b"", 0
    for _ in range(rows):
        for k, width in enumerate(widths):
            value = int.from_bytes(file.take(width), "little")
            if k == ascends:
                value = last = (last + value) % 256**width
            out += value.to_bytes(width, "little")
    return out


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)
