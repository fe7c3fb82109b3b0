"""Executables of Android, made by hand with a few rows in each table."""

import hashlib
import struct
import zlib

__all__ = ["dex_file", "length", "with_sums"]

_NAMES = [b"", b"<init>", b"La/b;", b"V", b"caf\xc3\xa9 \xed\xa0\xbd\xed\xb8\x80", b"two\nlines \xc0\x80", b"x" * 200]


def dex_file(names: int = 40, code: bytes = b"\x70\x10\x01\x00\x00\x00\x0e\x00" * 9, gap: bytes = b"") -> bytes:
    """Return an executable with names, two tables of numbers, code before the names and a map after them.

    Args:
        names: how many names follow the fixed ones.
        code: bytes before the names.
        gap: bytes between the places of names and the tables, where none should be.
    """
    texts = _NAMES + [b"name%d" % number for number in range(names)]
    types = struct.pack("<4I", 2, 3, 5, 6)
    prototypes = struct.pack("<6I", 3, 0, 0, 3, 1, 0)
    methods = b"".join(struct.pack("<HHI", number // 3, number % 2, 7 * number) for number in range(12))
    classes = struct.pack("<8I", 1, 1, 0, 0, 4, 0, 300, 0)
    start = 112 + 4 * len(texts) + len(gap)
    places = [start, start + 16, 0, start + 40, start + 136]
    end = start + 168
    items = [length(text) + text + b"\0" for text in texts]
    first = end + len(code)
    strings = b"".join(struct.pack("<I", first + sum(map(len, items[:number]))) for number in range(len(items)))
    body = strings + gap + types + prototypes + methods + classes + code + b"".join(items) + b"\1\0\0\0map"
    tables = [number for pair in zip((4, 2, 0, 12, 1), places, strict=True) for number in pair]
    numbers = [112 + len(body), 112, 0x12345678, 0, 0, 112 + len(body) - 7, len(texts), 112, *tables, 0, 0]
    return with_sums(b"dex\n035\0" + bytes(24) + struct.pack("<20I", *numbers) + body)


def with_sums(data: bytes) -> bytes:
    """Return an executable with the checksums that it should have."""
    digest = hashlib.sha1(data[32:]).digest()
    return data[:8] + struct.pack("<I", zlib.adler32(digest + data[32:])) + digest + data[32:]


def length(text: bytes) -> bytes:
    """Return the number of UTF-16 units of a name as executables have it."""
    units, digits = sum(byte & 0xC0 != 0x80 for byte in text), bytearray()
    while units >= 128:
        digits.append(units & 127 | 128)
        units >>= 7
    return bytes([*digits, units])
