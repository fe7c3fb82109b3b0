"""Tables of a program that follow from others, written from docs/format.md, section 21.8, one number at a time."""

from itertools import pairwise
from typing import Any

__all__ = ["get", "hashes_of", "headers", "put", "relocations", "rows", "symbols"]


def get(data: bytearray, at: int, size: int = 4) -> int:
    return int.from_bytes(data[at : at + size], "little")


def put(data: bytearray, at: int, value: int, size: int = 4) -> None:
    data[at : at + size] = (value % 256**size).to_bytes(size, "little")


def relocations(table: bytearray, known: bytearray, segments: list[tuple[int, int, int]]) -> bytearray:
    segments = segments or [(0, 0, 0)]
    place = symbol = 0
    for at in range(0, len(table) - 23, 24):
        place = (place + get(table, at, 8) + 2**63) % 2**64 - 2**63
        symbol = (symbol + get(table, at + 12)) % 2**32
        put(table, at, place, 8)
        put(table, at + 12, symbol)
        first, start, size = next((found for found in reversed(segments) if found[0] <= place), segments[0])
        value = get(known, start + place - first, 8) if 0 <= place - first < size - 7 else 0
        put(table, at + 16, get(table, at + 16, 8) + value, 8)
    return table


class _Ordered:
    """The numbers of rows, in the order of their form."""

    def __init__(self, data: bytearray, form: int):
        self.data, self.row, self.order = data, form // 2, ("little", "big")[form % 2]

    def get(self, at: int) -> int:
        return int.from_bytes(self.data[at : at + 4], self.order)  # type: ignore[arg-type]

    def put(self, at: int, value: int) -> int:
        self.data[at : at + 4] = (value % 2**32).to_bytes(4, self.order)  # type: ignore[arg-type]
        return value % 2**32


def rows(table: bytearray, base: int, form: int) -> None:
    v, numbers = 0, _Ordered(table, form)
    for at in range(0, len(table) - 3, form // 2):
        v = numbers.put(at, v + numbers.get(at))


def symbols(table: bytearray, form: int, strings: bytearray) -> None:
    last, left, numbers = 0, 4 * len(strings), _Ordered(table, form)
    for at in range(0, len(table) - 3, form // 2):
        e = last
        while e < len(strings) and strings[e] and left > 0:
            e, left = e + 1, left - 1
        e += 1
        n = numbers.get(at)
        v = numbers.put(at, 0 if n == 0 else e - 1 if n == (1 - e) % 2**32 else n + e - 1)
        last = v or last


def headers(table: bytearray, base: int, form: int) -> None:
    numbers, row, end = _Ordered(table, form), form // 2, [0, 0]
    place, size, align, of = (24, 32, 48, 44) if row == 64 else (16, 20, 32, 28)
    if form == 129:
        place, size, align = place + 4, size + 4, align + 4
    for i in range(len(table) // row):
        p = i * row
        k, step = numbers.get(p + 4), max(numbers.get(p + align), 1)
        e = end[k in (4, 9)] + step - 1
        v = numbers.put(p + place, numbers.get(p + place) + e - e % step)
        if k in (4, 9):
            numbers.put(p + of, i - numbers.get(p + of))
        end[k in (4, 9)] = v if k == 8 else v + numbers.get(p + size)


def hashes_of(head: bytearray, size: int, symbols: bytearray, strings: bytearray, wide: int) -> bytes:
    buckets, first, words, shift = (get(head, at) for at in (0, 4, 8, 12))
    width, row = (8, 24) if wide else (4, 16)
    bits: list[Any] = [0] * words
    bucket, hashes = [0] * buckets, []
    for i in range((size - 16 - words * width) // 4 - buckets):
        start, h = get(symbols, (first + i) * row), 5381
        for byte in strings[start : strings.index(0, start)]:
            h = (33 * h + byte) % 2**32
        hashes.append(h)
        bits[h // (8 * width) % words] |= 1 << h % (8 * width) | 1 << (h >> shift) % (8 * width)
        bucket[h % buckets] = bucket[h % buckets] or first + i
    lasts = [h % buckets != after % buckets for h, after in pairwise(hashes)] + [True]
    chain = [h - h % 2 + last for h, last in zip(hashes, lasts, strict=False)]
    return b"".join(word.to_bytes(width, "little") for word in bits) + b"".join(
        number.to_bytes(4, "little") for number in bucket + chain
    )
