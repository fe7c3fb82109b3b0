"""Registers of records: what they hold by the specification, and that counts survive other data between rows."""

from dataclasses import replace

import numpy as np
import pytest

from squeeze.codecs.bytewise import coder, presets
from squeeze.numerics.bitmodels import records
from squeeze.numerics.jit import kernel
from tests.references.naive_records import Records


@kernel
def _fill(registers, found, data, record):
    for i in range(data.size):
        records.update_byte(registers, data, i + 1, record)
        for k in range(4):
            found[i, k] = registers[k]


def _after_each(data, record):
    """Return the registers after each byte, uint64 [n, 4]."""
    found = np.zeros((data.size, 4), np.uint64)
    _fill(np.zeros(records.REGISTERS, np.uint64), found, data, record)
    return found


def _cells(rows, moved=()):
    """Return rows of 30 cells of 8 bytes with a column number each, with 11 other bytes before some rows."""
    chance = np.random.default_rng(3)
    usual = chance.integers(0, 2, 30)
    parts = []
    for row in range(rows):
        parts.append(b"other bytes" if row in moved else b"")
        values = (90 * (usual ^ (chance.random(30) < 0.03))).tolist()
        flags = chance.integers(0, 2, (30, 3)).astype(np.uint8)
        parts += [bytes([7, row & 255, column, *flags[column], values[column], 9]) for column in range(30)]
    return np.frombuffer(b"".join(parts), np.uint8)


@pytest.mark.parametrize("record", [1, 2, 8, 24, 3000])
def test_registers_are_those_of_the_specification(record):
    data = np.concatenate([_cells(9, (4, 7)), np.random.default_rng(1).integers(0, 9, 200).astype(np.uint8)])
    naive = Records(record)
    for i, found in enumerate(_after_each(data, record).tolist()):
        assert found == list(naive.registers(data[: i + 1].tobytes()).values())


def test_a_byte_that_counts_is_a_context_wherever_records_begin():
    data = _cells(8, moved=(5,))
    counts = _after_each(data, 8)[:, records.COUNT] >> np.uint64(16)
    row, moved, begin = 30 * 8, 11, 5 * 8
    before, after = counts[4 * row + begin : 5 * row], counts[5 * row + moved + begin : 6 * row + moved]
    assert np.array_equal(before, after)


def test_numbered_cells_in_moved_rows_shrink():
    data = _cells(200, moved=range(3, 200, 3))
    table = presets.preset(1, "table")
    plain = replace(table, contexts=tuple(c for c in table.contexts if c[0] != presets.COUNT))
    assert len(coder.encode(data, table, 8)) < 0.9 * len(coder.encode(data, plain, 8))
