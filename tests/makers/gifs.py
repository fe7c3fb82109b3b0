"""GIF files as several encoders write them, by an encoder of LZW with strings as they are."""

import struct
from collections.abc import Sequence

_PASSES = ((0, 8), (4, 8), (2, 4), (1, 2))


def codes_of(symbols: bytes, bits: int, clears_at: int = 4096, mistake: int = 1 << 20) -> list[int]:
    """Return the codes of symbols.

    Args:
        symbols: the numbers of colours
        bits: bits of a symbol
        clears_at: codes of the table when it is cleared; above 4096 it never is
        mistake: codes from one that has a single symbol to the next
    """
    clear = 1 << bits
    fresh = {bytes([symbol]): symbol for symbol in range(clear)}
    codes, table, known, first, at = [clear], dict(fresh), clear + 2, True, 0
    while at < len(symbols):
        if known == clears_at:
            codes.append(clear)
            table, known, first = dict(fresh), clear + 2, True
        size = 1
        while len(codes) % mistake and at + size < len(symbols) and symbols[at : at + size + 1] in table:
            size += 1
        codes.append(table[symbols[at : at + size]])
        known += not first and known < 4096
        first, at = False, at + size
        if known < 4096:
            table.setdefault(symbols[at - size : at + 1], known)
    return [*codes, clear + 1]


def packed(codes: Sequence[int], bits: int) -> bytes:
    """Return codes as a stream."""
    width, known, first, value, place = bits + 1, (1 << bits) + 2, True, 0, 0
    for code in codes:
        value |= code << place
        place += width
        if code == 1 << bits:
            width, known, first = bits + 1, (1 << bits) + 2, True
            continue
        if not first and known < 4096:
            known += 1
            width += known == 1 << width and width < 12
        first = False
    return value.to_bytes((place + 7) // 8, "little")


def packed_early(codes: Sequence[int]) -> bytes:
    """Return codes of bytes as a stream of PDF and TIFF: high bits first, wider one code early."""
    width, known, first, digits = 9, 258, True, ""
    for code in codes:
        digits += f"{code:0{width}b}"
        if code == 256:
            width, known, first = 9, 258, True
            continue
        if not first and known < 4096:
            known += 1
            width += known + 1 == 1 << width and width < 12
        first = False
    digits += "0" * (-len(digits) % 8)
    return int(digits, 2).to_bytes(len(digits) // 8, "big")


def image(width: int, stream: bytes, bits: int, height: int, interlaced: bool = False, block: int = 255) -> bytes:
    """Return an image descriptor and a stream in blocks."""
    blocks = b"".join(
        bytes([len(part)]) + part for part in (stream[i : i + block] for i in range(0, len(stream), block))
    )
    return struct.pack("<BHHHHBB", 0x2C, 0, 0, width, height, 64 * interlaced, bits) + blocks + b"\0"


def gif(width: int, images: Sequence[bytes], bits: int = 8, height: int = 1) -> bytes:
    """Return a GIF file of images, with a comment and a delay between them."""
    colours = bytes(range(1 << bits)) * 3
    header = b"GIF89a" + struct.pack("<HHBBB", width, height, 128 | bits - 1, 0, 0) + colours
    between = b"\x21\xf9\x04\x00\x0a\x00\x00\x00\x21\xfe\x05hello\x00"
    return header + b"".join(between + one for one in images) + b";"


def interlaced(pixels: bytes, width: int) -> bytes:
    """Return pixels with their rows in the order of an interlaced image."""
    rows = [pixels[at : at + width] for at in range(0, len(pixels), width)]
    return b"".join(row for first, step in _PASSES for row in rows[first::step])
