"""Registers of repeated cells: what they hold by the specification, and what they expect."""

import numpy as np
import pytest

from squeeze.numerics.bitmodels import copied, fields
from squeeze.numerics.jit import kernel
from tests.makers import inputs
from tests.references.naive_copied import Copied
from tests.references.naive_fields import Fields

LOG = b"".join(
    b"12:%02d unpacks lib-%d:all %d.%d-1\n12:%02d has lib-%d:all %d.%d-1\n" % (i, i * i, i % 7, i, i, i * i, i % 7, i)
    for i in range(40)
)
CASES = {
    "log": LOG,
    "JSON": b"".join(b'  "id": %d,\n  "id_str": "%d",\n' % (i * 7919, i * 7919) for i in range(40)),
    "many cells": b",".join(b"%d" % (i % 37) for i in range(400)),
    "separators": b'\n\n  ,,;;||\t"" a  a\n a',
    "noise": inputs.random_bytes(600),
}


@kernel
def _fill(of_copied, of_fields, places, numbers, distances, data, found):
    for i in range(data.size):
        fields.update_byte(of_fields, places, numbers, data, i + 1)
        copied.update_byte(of_copied, of_fields, distances, data, i + 1)
        found[i, 0], found[i, 1] = of_copied[copied.BY_FORM], of_copied[copied.BY_PLACE]


def after_each(raw):
    """Return both registers after each byte, uint64 [n, 2]."""
    data = np.frombuffer(raw, np.uint8)
    found, numbers = np.zeros((data.size, 2), np.uint64), np.zeros((fields.NUMBERS, 3), np.int64)
    registers = np.zeros(copied.REGISTERS, np.uint64), np.zeros(fields.REGISTERS, np.uint64)
    places, distances = np.zeros(fields.PLACES, np.int32), np.zeros(2 * copied.ROWS, np.int32)
    _fill(*registers, places, numbers, distances, data, found)
    return found


@pytest.mark.parametrize("raw", CASES.values(), ids=CASES)
def test_registers_are_those_of_the_specification(raw):
    naive, lines, data, expected = Copied(), Fields(), bytearray(), []
    for byte in raw:
        data.append(byte)
        lines.registers(byte, data)
        expected.append(list(naive.registers(byte, data, lines).values()))
    assert after_each(raw).tolist() == expected


def test_names_that_come_again_are_expected():
    half = LOG.index(b"has lib-400:all")
    name = half + 4
    found = after_each(LOG)[name - 1 : name + 10, 1] & 255
    assert found.astype(np.uint8).tobytes() == b"lib-400:all"
