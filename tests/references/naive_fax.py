"""The rows of a facsimile, coded as docs/format.md says (21.14), pixel by pixel, with the codes of that page."""

import re
from functools import cache
from itertools import pairwise
from pathlib import Path

from tests.references.reading import Bytes

PAGE = Path(__file__).parents[2] / "docs/format.md"


def close(content: bytes, extra: bytes) -> bytes:
    file = Bytes(extra)
    columns, flags, period, ends, last = file.varint(), file.byte(), file.varint(), file.byte(), file.byte()
    assert file.rest == 0
    stream = coded(rows_of(content, columns), flags % 4, period, ends)
    stream = stream[:-1] + bytes([stream[-1] ^ last])
    return bytes(int(f"{byte:08b}"[::-1], 2) for byte in stream) if flags & 4 else stream


def rows_of(content: bytes, columns: int) -> list[str]:
    """Return the pixels of rows as digits."""
    size = (columns + 7) // 8
    digits = ("".join(f"{byte:08b}" for byte in content[at : at + size]) for at in range(0, len(content), size))
    return [row[:columns] for row in digits]


def coded(rows: list[str], flags: int, period: int, ends: int) -> bytes:
    bits, above, columns = "", [], len(rows[0])
    for number, row in enumerate(rows):
        one = period == 0 or (period > 1 and number % (period - 1) == 0)
        if flags & 1:
            while flags & 2 and len(bits) % 8 != 4:
                bits += "0"
            bits += "000000000001"
        elif flags & 2:
            bits += "0" * (-len(bits) % 8)
        bits += str(int(one)) if period > 1 else ""
        line = [x for x, (left, pixel) in enumerate(pairwise("0" + row)) if left != pixel]
        bits += _one(line, columns) if one else _two(line, above, columns)
        above = line
    bits += ("000000000001" + "1" * (period > 1)) * ends
    bits += "0" * (-len(bits) % 8)
    return bytes(int(bits[at : at + 8], 2) for at in range(0, len(bits), 8))


@cache
def _codes(name: str) -> list[str]:
    (text,) = re.findall(rf"^{name}((?: [01]+|\n[01]+)+)$", PAGE.read_text("utf-8"), re.M)
    return [code for code in text.split() if code]


def _run(length: int, color: int) -> str:
    codes, digits = _codes("black" if color else "white") + _codes("both"), ""
    while length >= 2560:
        digits, length = digits + codes[63 + 40], length - 2560
    return digits + (codes[63 + length // 64] if length >= 64 else "") + codes[length % 64]


def _one(line: list[int], columns: int) -> str:
    return "".join(_run(end - start, k % 2) for k, (start, end) in enumerate(pairwise([0, *line, columns])))


def _two(line: list[int], above: list[int], columns: int) -> str:
    at, color, digits, modes = -1, 0, "", _codes("modes")
    while at < columns:
        a = [x for x in line if x > at] + [columns, columns]
        b = [x for k, x in enumerate(above) if x > at and k % 2 == color][:1]
        b = [x for x in above if b and x >= b[0]] + [columns, columns]
        if b[1] < a[0]:
            digits, at = digits + modes[7], b[1]
        elif abs(a[0] - b[0]) <= 3:
            digits, at, color = digits + modes[3 + a[0] - b[0]], a[0], 1 - color
        else:
            digits += modes[8] + _run(a[0] - max(at, 0), color) + _run(a[1] - a[0], 1 - color)
            at = a[1]
    return digits
