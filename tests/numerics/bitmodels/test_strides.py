"""Registers of strides: what they hold by the specification, and the record lengths that they find."""

import numpy as np
import pytest

from squeeze.numerics.bitmodels import strides
from squeeze.numerics.jit import kernel
from tests.makers import inputs
from tests.references.naive_strides import Strides


def _records(length, count):
    """Return records of a constant mark, a number that counts up, and noise."""
    noise = inputs.random_bytes(length * count)
    return b"".join(bytes([200, 7, i & 255, 0]) + noise[i * length :][: length - 4] for i in range(count))


TWO_LENGTHS = _records(12, 80) + _records(20, 80)
CASES = {
    "two record lengths": TWO_LENGTHS,
    "one value": bytes(300),
    "two values": b"ab" * 100,
    "pairs": b"\0\1" * 3 + b"\2\1" * 200,
    "noise": inputs.random_bytes(600),
    "far records": _records(2500, 8),
}


@kernel
def _fill(registers, positions, data, found):
    for i in range(data.size):
        strides.update_byte(registers, positions, data, i + 1)
        found[i, 0], found[i, 1] = registers[strides.NEAR], registers[strides.ZEROS]


def after_each(raw):
    """Return both registers after each byte, uint64 [n, 2]."""
    data = np.frombuffer(raw, np.uint8)
    found = np.zeros((data.size, 2), np.uint64)
    _fill(np.zeros(strides.REGISTERS, np.uint64), np.zeros(strides.POSITIONS, np.int32), data, found)
    return found


@pytest.mark.parametrize("raw", CASES.values(), ids=CASES)
def test_registers_are_those_of_the_specification(raw):
    naive, data, expected = Strides(), bytearray(), []
    for byte in raw:
        data.append(byte)
        expected.append(list(naive.registers(byte, data).values()))
    assert after_each(raw).tolist() == expected


def test_both_record_lengths_are_found():
    found = after_each(TWO_LENGTHS)[:, 0] >> 32
    assert found[12 * 40 : 12 * 80].tolist() == [12] * (12 * 40)
    assert found[12 * 80 + 20 * 40 :].tolist() == [20] * (20 * 40)
