"""Floats of few decimal digits are coded as whole numbers, and others keep their bits."""

import io
from functools import cache

import numpy as np
import pytest

import squeeze
from squeeze.codecs.array import coder, decimals
from squeeze.codecs.array.layout import FLOAT, SIGNED, Layout
from squeeze.codecs.array.raw import find_raw
from squeeze.errors import DamagedError, FormatError
from tests.makers import arrays, inputs

CHANCE = np.random.default_rng(3)
CENTS = CHANCE.integers(-(10**6), 10**6, 3000)


def as_bytes(numbers: np.ndarray) -> np.ndarray:
    return np.frombuffer(numbers.tobytes(), np.uint8)


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize(("width", "digits"), [(8, 0), (8, 2), (8, 7), (4, 1), (4, 3)])
def test_the_digits_behind_the_point_are_found(width, digits, order):
    numbers = CENTS if width == 8 else CENTS // 10
    data = as_bytes((numbers / 10.0**digits).astype(f"{order}f{width}"))
    found, whole, layout = decimals.find(data, Layout(width, 1, FLOAT, int(order == ">")))
    assert found.digits == (digits,) and found.places.size == 0 and not found.missing
    assert layout == Layout(4, 1, SIGNED) and np.array_equal(whole.view("<i4"), numbers)
    assert np.array_equal(decimals.restore(whole, found, data.size), data)


def test_each_column_has_its_digits():
    rows = np.stack([CENTS / 100, CENTS / 4, CENTS / 1000.0], 1)
    assert decimals.find(as_bytes(rows), Layout(8, 3, FLOAT))[0].digits == (2, 2, 3)


SPECIAL = [np.nan, np.inf, -np.inf, -0.0, 5e-324, 1e300, np.pi, 0.1 + 0.2]


@pytest.mark.parametrize("width", [4, 8])
def test_floats_that_are_no_decimals_keep_their_bits(width):
    numbers = (CENTS[:2000] / 100).astype(f"<f{width}")
    numbers[::7] = np.nan
    with np.errstate(over="ignore"):
        numbers[5 : 5 + 3 * len(SPECIAL) : 3] = SPECIAL
    data = np.concatenate([np.frombuffer(b"head", np.uint8), as_bytes(numbers), np.frombuffer(b"end", np.uint8)])
    form = Layout(width, 1, FLOAT, 0, 4)
    found, _, _ = decimals.find(data, form)
    assert found.missing == numbers[:1].tobytes() and 4 <= found.places.size <= len(SPECIAL)
    payload = coder.encode(data, form, False)
    assert payload[0] == decimals.MARK and coder.decode(payload, data.size).tobytes() == data.tobytes()


@pytest.mark.parametrize("numbers", [arrays.waves(900), inputs.random_bytes(8000), arrays.times(900)])
def test_other_numbers_are_no_decimals(numbers):
    assert decimals.find(np.frombuffer(numbers, np.uint8), Layout(8, 1, FLOAT)) is None


def test_halves_have_no_decimals():
    assert decimals.find(as_bytes((CENTS % 1000).astype("<f2")), Layout(2, 1, FLOAT)) is None


@pytest.mark.parametrize("width", [4, 8])
def test_decimals_without_a_header_are_found(width):
    data = (np.cumsum(CHANCE.integers(-9, 10, 3000)) / 10).astype(f"<f{width}").tobytes()
    assert find_raw(np.frombuffer(data, np.uint8)) == Layout(width, 1, FLOAT)
    coded = squeeze.compress(data, 3)
    assert len(coded) < 0.8 * 3000 and squeeze.decompress(coded) == data


def test_few_values_are_no_decimals_beyond_doubt():
    assert find_raw(np.zeros(1 << 14, np.uint8)) is None
    assert find_raw(as_bytes(np.tile([1.0, 2.0], 2000))) is None


@cache
def payload():
    """Return the payload of prices; not made at import, since that compiles."""
    return coder.encode(as_bytes(np.frombuffer(arrays.prices(500), "<f8")), Layout(8, 1, FLOAT), False)


def test_damage_in_the_head_is_an_error_or_other_bytes():
    for place in range(1, 40):
        for bit in range(8):
            damaged = bytearray(payload())
            damaged[place] ^= 1 << bit
            try:
                assert coder.decode(bytes(damaged), 4000).size == 4000
            except FormatError:
                continue


@pytest.mark.parametrize("size", range(1, 26, 4))
def test_a_head_that_was_cut_off_is_an_error(size):
    with pytest.raises(FormatError):
        coder.decode(payload()[:size], 4000)


@pytest.mark.parametrize(
    "head",
    [
        b"\x00\x00\x01\x02\x00",  # floats of two bytes
        b"\x11\x00\x01\x02\x00",  # whole numbers of 8 bytes for floats of 4
        b"\x42\x00\x01\x02\x00",  # an unknown flag
        b"\x02\x09\x01\x02\x00",  # a prefix that is longer than all
        b"\x02\x00\x00\x00",  # no columns
        b"\x02\x00\x01\x10\x00",  # 16 digits
        b"\x02\x00\x01\x02\x01\x01" + bytes(8),  # a float behind the last
    ],
)
def test_an_impossible_head_is_an_error(head):
    with pytest.raises(DamagedError):
        decimals.read(io.BytesIO(head), 8)
