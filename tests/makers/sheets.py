"""Records of spreadsheets in BIFF, as in .xls files: made of their types, rows, columns and values."""

import struct

import numpy as np


def _record(kind: int, content: bytes) -> bytes:
    return struct.pack("<HH", kind, len(content)) + content


def begin(version: int) -> bytes:
    """Return the first record of BIFF 2 or 8."""
    if version == 2:
        return _record(9, struct.pack("<HH", 2, 16))
    return _record(0x809, struct.pack("<HHHHII", 0x600, 16, 2003, 1996, 0, 6))


def cell(version: int, row: int, column: int, value: int | None) -> bytes:
    """Return a cell with a whole number, or a blank one."""
    if version == 2:
        place, form = struct.pack("<HH", row, column), bytes((0, 3, 3))
        return _record(1, place + form) if value is None else _record(2, place + form + struct.pack("<H", value))
    place = struct.pack("<HHH", row, column, 15 + column % 3)
    return _record(0x201, place) if value is None else _record(0x27E, place + struct.pack("<i", 4 * value + 2))


def several(row: int, column: int, values: list[int]) -> bytes:
    """Return one record of BIFF 8 with the cells of a row from a column on, and one of as many blank cells after it."""
    last = column + len(values) - 1
    numbers = b"".join(struct.pack("<Hi", 15, 4 * value + 2) for value in values)
    blanks = struct.pack("<HH", row, last + 1) + struct.pack("<H", 15) * len(values)
    found = _record(0xBD, struct.pack("<HH", row, column) + numbers + struct.pack("<H", last))
    return found + _record(0xBE, blanks + struct.pack("<H", last + len(values)))


def sheet(version: int, rows: int, columns: int = 40, seed: int = 5) -> bytes:
    """Return a survey in BIFF 2 or 8: many cells of a row are as the one before, and some are blank."""
    chance = np.random.default_rng(seed)
    found = [begin(version), _record(0x42, b"\xe4\4")]
    for row in range(rows):
        value = 1
        for column in range(columns):
            value = int(chance.integers(0, 7)) if chance.random() < 0.2 else value
            found.append(cell(version, row, column, None if column % 5 == 3 or chance.random() < 0.1 else value))
        if version == 8 and row % 4 == 1:
            found.append(several(row, columns, [3, 1000, row]))
    return b"".join(found) + _record(10, b"")
