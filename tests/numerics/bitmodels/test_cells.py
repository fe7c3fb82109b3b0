"""Registers of cells: what they hold by the specification, wherever a chain of records begins and breaks."""

import numpy as np
import pytest

from squeeze.numerics.bitmodels import cells, records
from squeeze.numerics.jit import kernel
from tests.makers import sheets
from tests.references.naive_cells import Cells
from tests.references.naive_records import Records

_SHOWN = 5  # registers; the others are those of the chain


@kernel
def _fill(registers, of_records, usual, found, data, record):
    for i in range(data.size):
        records.update_byte(of_records, data, i + 1, record)
        cells.update_byte(registers, of_records, usual, data, i + 1, record)
        for k in range(_SHOWN):
            found[i, k] = registers[k]


def _after_each(raw, record):
    """Return the registers after each byte, uint64 [n, 5]."""
    data = np.frombuffer(raw, np.uint8)
    found, usual = np.zeros((data.size, _SHOWN), np.uint64), np.zeros((cells.PLACES, cells.WIDTH), np.int32)
    arrays = np.zeros(cells.REGISTERS, np.uint64), np.zeros(records.REGISTERS, np.uint64), usual
    _fill(*arrays, found, data, record)
    return found


CASES = {
    "BIFF 2": sheets.sheet(2, 4),
    "BIFF 8": sheets.sheet(8, 6),
    "no first record": sheets.sheet(8, 3)[30:],
    "breaks": sheets.sheet(8, 3) + b"\xff" * 9 + sheets.sheet(2, 2) + bytes(50) + sheets.sheet(8, 2)[40:],
    "short rows that count": b"".join(bytes([7, i // 9, i % 9, i * i % 5, 1]) for i in range(90)),
    "noise": np.random.default_rng(1).integers(0, 9, 500).astype(np.uint8).tobytes(),
    "records without end": sheets.begin(8) + b"\3\2\xff\xff" + bytes(range(200)),
    "several cells without any": sheets.begin(8) + b"\xbd\0\0\0\xbe\0\2\0ab\xbd\0\5\0abcde" + sheets.sheet(8, 1),
}


@pytest.mark.parametrize("record", [1, 14, 3000])
@pytest.mark.parametrize("case", CASES)
def test_registers_are_those_of_the_specification(case, record):
    raw = CASES[case]
    of_records, naive = Records(record), Cells(record)
    for i, found in enumerate(_after_each(raw, record).tolist()):
        of_records.registers(raw[: i + 1])
        assert found == list(naive.registers(raw[: i + 1], of_records).values()), i


def test_a_place_of_a_column_has_one_register_in_every_row():
    raw = b"".join(sheets.cell(8, row, column, 5) for row in range(9) for column in range(6))
    found, row = _after_each(raw, 14)[:, cells.CELL], 6 * 14
    assert np.array_equal(found[2 * row : 3 * row], found[7 * row : 8 * row])
    assert np.unique(found[2 * row : 3 * row]).size == row


def test_the_last_unusual_value_is_told_with_its_distance():
    values = [0] * 20 + [7, 0, 0, 0]
    raw = b"".join(sheets.cell(8, 1, column, value) for column, value in enumerate(values))
    told = int(_after_each(raw, 14)[14 * 23 + 9, cells.UNUSUAL])  # before the low byte of the last value
    assert (told & 0xFF, told >> 8) == (4 * 7 + 2, 3)


def test_the_bytes_before_are_those_of_the_cell_before_of_the_type():
    raw = sheets.begin(8) + b"".join(sheets.cell(8, 1, k, 5 * k) + sheets.cell(8, 1, 20 + k, None) for k in range(5))
    told = int(_after_each(raw, 14)[len(raw) - 10 - 5, cells.BEFORE])  # before the low byte of the last value
    assert (told & 0xFF, told >> 8 & 0xFF, told >> 32 & 0xFF) == (4 * 15 + 2, 4 * 10 + 2, 4 * 5 + 2)
