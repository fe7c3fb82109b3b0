"""Tables of programs: `.gnu.hash`, which follows from the symbols, and relocations, whose addends the image has."""

import numpy as np

from squeeze.codecs.parse.program.numbers import long, put, word
from squeeze.numerics.jit import inline, kernel

__all__ = ["HASH_HEADER", "gnu_hash", "relocations"]

HASH_HEADER = 16  # bytes of a `.gnu.hash` that are kept: buckets, first symbol, words of the filter, its shift
_MOST_STEPS = 4  # letters that are read of names for each byte of the strings
RELOCATION = 24  # bytes of a relocation with an addend in 64-bit ELF


def gnu_hash(header: bytes, size: int, symbols: np.ndarray, strings: np.ndarray, is_wide: bool) -> np.ndarray | None:
    """Return the bytes of `.gnu.hash` behind its header, uint8 [size - HASH_HEADER]; None if the sizes are impossible.

    Args:
        header: its first HASH_HEADER bytes.
        size: its bytes.
        symbols: uint8, the bytes of `.dynsym`, or more.
        strings: uint8, those of `.dynstr`.
        is_wide: whether it is of a 64-bit image.
    """
    buckets, first, words, shift = (int(value) for value in np.frombuffer(header, "<u4", 4))
    width, row = (8, 24) if is_wide else (4, 16)
    count = (size - HASH_HEADER - words * width) // 4 - buckets
    if not buckets or not words or count < 0 or shift > 31 or (first + count) * row > symbols.size:
        return None
    if HASH_HEADER + words * width + 4 * (buckets + count) != size:
        return None
    derived = np.zeros(size - HASH_HEADER, np.uint8)
    filtered = np.zeros(words, np.uint64)
    table = np.zeros(buckets + count, np.uint32)
    if not _fill(symbols[first * row :], strings, row, (first, buckets, shift, 8 * width), filtered, table):
        return None
    derived[: words * width] = filtered.astype(f"<u{width}").view(np.uint8)
    derived[words * width :] = table.astype("<u4").view(np.uint8)
    return derived


@kernel
def _fill(symbols, strings, row, sizes, filtered, table):
    """Fill the filter and the table of buckets and chains; return whether all names are in the strings."""
    first, buckets, shift, bits = sizes
    count = table.size - buckets
    before, steps = np.int64(-1), 0
    for i in range(count):
        place, value = word(symbols, i * row), np.int64(5381)
        while place < strings.size and strings[place]:
            value = (value * 33 + strings[place]) & 0xFFFFFFFF
            place += 1
        steps += place
        steps -= word(symbols, i * row)
        if place >= strings.size or steps > _MOST_STEPS * strings.size:
            return False
        number = (value // bits) % filtered.size
        filtered[number] |= np.uint64(1) << np.uint64(value % bits) | np.uint64(1) << np.uint64((value >> shift) % bits)
        bucket = value % buckets
        if not table[bucket]:
            table[bucket] = first + i
        if i and bucket != before:
            table[buckets + i - 1] |= np.uint32(1)
        table[buckets + i] = value & 0xFFFFFFFE
        before = bucket
    if count:
        table[table.size - 1] |= np.uint32(1)
    return True


def relocations(table: np.ndarray, image: np.ndarray, segments: np.ndarray, forward: bool) -> None:
    """Replace fields of relocations by differences, or undo it, in place.

    Places and symbols become differences from the row above, and addends those from what the image has at the place.

    Args:
        table: uint8 [n], a copy of rows of RELOCATION bytes.
        image: uint8, the image, with zeros for what is not restored yet.
        segments: int64 [s, 3], the addresses, starts and sizes of its segments, by their addresses.
        forward: whether fields become differences.
    """
    _relocate(table[: table.size // RELOCATION * RELOCATION], image, segments, forward)


@kernel
def _relocate(table, image, segments, forward):
    place, symbol, segment = np.int64(0), np.int64(0), 0
    for at in range(0, table.size, RELOCATION):
        stored, name, addend = long(table, at), word(table, at + 12), long(table, at + 16)
        if forward:
            put(table, at, stored - place, 8)
            put(table, at + 12, name - symbol, 4)
            place, symbol = stored, name
        else:
            place, symbol = place + stored, (symbol + name) & 0xFFFFFFFF
            put(table, at, place, 8)
            put(table, at + 12, symbol, 4)
        later = segment + 1
        if place < segments[segment, 0] or (later < segments.shape[0] and segments[later, 0] <= place):
            segment = _segment_of(segments, place)
        offset = place - segments[segment, 0]
        value = np.int64(0)
        if 0 <= offset < segments[segment, 2] - 7:
            value = long(image, segments[segment, 1] + offset)
        put(table, at + 16, addend - value if forward else addend + value, 8)


@inline
def _segment_of(segments, place):
    """Return the number of the last segment that starts at an address or before it, or 0."""
    low, high = 0, segments.shape[0] - 1
    while low < high:
        middle = (low + high + 1) >> 1
        if segments[middle, 0] <= place:
            low = middle
        else:
            high = middle - 1
    return low
