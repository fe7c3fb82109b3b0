"""The entropy-coded data of a scan: its intervals between restart markers, its codes, and the order of its blocks."""

import re
from typing import NamedTuple

import numpy as np

from squeeze.codecs.jpeg.layout import Component, Frame, Scan

__all__ = ["Codes", "Order", "cut", "join", "lookup", "order", "write_codes"]

_RESTART = re.compile(rb"\xff([\xd0-\xd7])")
_LONGEST = 16  # bits of a code


class Order(NamedTuple):
    """The blocks of a scan in its order, as indices among those of all components, and the component of each."""

    blocks: np.ndarray  # int32 [n]
    components: np.ndarray  # uint8 [n]: places in the scan's list
    mcu: int  # blocks of an MCU


class Codes(NamedTuple):
    """The Huffman codes of each table."""

    codes: np.ndarray  # uint16 [tables, 256]
    lengths: np.ndarray  # uint8 [tables, 256]: 0 for symbols without a code


def cut(data: bytes) -> list[bytes] | None:
    """Return the intervals of a scan without stuffed zeros, or None if its restart markers are not in their order."""
    markers = [match[1][0] for match in _RESTART.finditer(data)]
    if any(marker != 0xD0 + i % 8 for i, marker in enumerate(markers)):
        return None
    return [part.replace(b"\xff\x00", b"\xff") for part in _RESTART.split(data)[::2]]


def join(intervals: list[bytes]) -> bytes:
    """Return the data of a scan from its intervals."""
    parts = [interval.replace(b"\xff", b"\xff\x00") for interval in intervals]
    markers = (bytes([0xFF, 0xD0 + i % 8]) for i in range(len(parts)))
    return b"".join(piece for pair in zip(parts, markers, strict=True) for piece in pair)[:-2]


def order(frame: Frame, scan: Scan) -> Order:
    """Return the blocks of a scan in the order in which it has them."""
    found = [frame.components[index] for index in scan.components]
    if len(found) == 1:
        blocks = _raster(found[0])
        return Order(blocks, np.zeros(blocks.size, np.uint8), 1)
    parts, numbers = list[np.ndarray](), list[int]()
    for place, component in enumerate(found):
        grid = np.arange(component.wide * component.high, dtype=np.int32) + np.int32(component.first)
        shape = component.high // component.down, component.down, component.wide // component.across, component.across
        parts.append(grid.reshape(shape).swapaxes(1, 2).reshape(-1, component.down * component.across))
        numbers += [place] * (component.down * component.across)
    blocks = np.concatenate(parts, axis=1)
    return Order(blocks.ravel(), np.tile(np.array(numbers, np.uint8), len(blocks)), len(numbers))


def _raster(component: Component) -> np.ndarray:
    rows, columns = np.arange(component.rows, dtype=np.int32), np.arange(component.columns, dtype=np.int32)
    blocks: np.ndarray = (np.int32(component.first) + rows[:, None] * np.int32(component.wide) + columns).ravel()
    return blocks


def write_codes(scan: Scan) -> Codes:
    """Return the codes of a scan's tables for writing."""
    codes, lengths = np.zeros((8, 256), np.uint16), np.zeros((8, 256), np.uint8)
    for table, row in enumerate(scan.codes):
        code, place = 0, 16
        for length in range(1, _LONGEST + 1):
            for symbol in row[place : place + row[length - 1]]:
                codes[table, symbol], lengths[table, symbol] = code & 0xFFFF, length
                code += 1
            place += int(row[length - 1])
            code <<= 1
    return Codes(codes, lengths)


def lookup(scan: Scan) -> np.ndarray:
    """Return uint16 [8, 65536]: the length of the code that 16 bits begin with, and its symbol below; 0 for none."""
    table = np.zeros((8, 1 << _LONGEST), np.uint16)
    for number in {*scan.dc, *scan.ac}:
        row, place, done = scan.codes[number], 16, 0
        for length in range(1, _LONGEST + 1):
            symbols = row[place : place + row[length - 1]].astype(np.uint16)
            entries = np.repeat(symbols | np.uint16(length << 8), 1 << (_LONGEST - length))
            table[number, done : done + entries.size] = entries
            place, done = place + symbols.size, done + entries.size
    return table
