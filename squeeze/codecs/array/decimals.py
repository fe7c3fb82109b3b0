"""Floats that are decimal fractions of few digits, such as prices and measurements, as whole numbers.

The binary digits of 20.35 have no pattern, and those of 2035 have: neighbours differ by little, and nothing is behind
the point. A float is a decimal here if the whole number, divided by a power of ten, is that float to the bit. One other
value, such as NaN for what is missing, is a whole number of its own. The rest are listed with their bytes.
"""

import io
from typing import NamedTuple

import numpy as np

from squeeze.codecs.array.layout import FLOAT, MOST_COLUMNS, SIGNED, WIDTHS, Layout
from squeeze.errors import DamagedError
from squeeze.system.binary import read_exactly, read_varint, varint

__all__ = ["MARK", "Decimals", "find", "read", "restore", "whole_numbers"]

MARK = 2  # first byte of the payload, in place of that of a model
_POWERS = np.array([10.0**digits for digits in range(16)])  # exact in float64
_LARGEST = {4: 1 << 21, 8: 1 << 48}  # whole numbers below it have clearly fewer bits than the float of so many bytes
_SAMPLE = 1024  # rows that choose the digits
_SELDOM = 1 / 64  # share of the numbers that may be no decimals


class Decimals(NamedTuple):
    """The form of decimals as whole numbers.

    Attributes:
        width: bytes of a float, 4 or 8.
        big: 1 if its high byte comes first.
        whole: bytes of a whole number: 2, 4 or 8.
        prefix: bytes before the first float.
        digits: digits behind the point, 0 to 15, by column.
        missing: bytes of the one other value, or none.
        marks: its whole number, by column; 0 without one.
        places: int64, the numbers of floats that are no decimals.
        others: uint8 [n, width], their bytes.
    """

    width: int
    big: int
    whole: int
    prefix: int
    digits: tuple[int, ...]
    missing: bytes
    marks: tuple[int, ...]
    places: np.ndarray
    others: np.ndarray

    def to_bytes(self) -> bytes:
        """Return what `read` reads."""
        flags = WIDTHS.index(self.width) | self.big << 2 | WIDTHS.index(self.whole) << 3 | bool(self.missing) << 5
        head = bytes([MARK, flags]) + varint(self.prefix) + bytes([len(self.digits), *self.digits])
        if self.missing:
            head += self.missing + b"".join(varint(2 * abs(mark) + (mark < 0)) for mark in self.marks)
        gaps = np.diff(self.places, prepend=-1) - 1
        listed = b"".join(varint(int(gap)) + other.tobytes() for gap, other in zip(gaps, self.others, strict=True))
        return head + varint(self.places.size) + listed


def read(file: io.BytesIO, length: int) -> tuple[Decimals, int]:
    """Read how decimals of `length` bytes are stored, after MARK, and return it with the length as whole numbers.

    Raises:
        DamagedError: if there are no such decimals.
    """
    flags, prefix = read_exactly(file, 1)[0], read_varint(file)[0]
    columns = read_exactly(file, 1)[0]
    digits = tuple(read_exactly(file, columns))
    fits = flags & 3 in (1, 2) and flags >> 3 & 3 < len(WIDTHS) and flags >> 6 == 0 and prefix <= length
    if not fits or not 1 <= columns <= MOST_COLUMNS or max(digits) >= _POWERS.size:
        raise _damaged()
    width, whole = WIDTHS[flags & 3], WIDTHS[flags >> 3 & 3]
    if whole > width:
        raise _damaged()
    count, rest = divmod(length - prefix, width)
    missing = read_exactly(file, width) if flags >> 5 else b""
    marks = tuple(_signed(read_varint(file)[0]) if missing else 0 for _ in range(columns))
    places, others, place = list[int](), list[bytes](), -1
    for _ in range(read_varint(file)[0]):
        place += 1 + read_varint(file)[0]
        if place >= count:
            raise _damaged()
        places.append(place)
        others.append(read_exactly(file, width))
    rows = np.frombuffer(b"".join(others), np.uint8).reshape(-1, width)
    listed = np.array(places, np.int64), rows
    return Decimals(
        width, flags >> 2 & 1, whole, prefix, digits, missing, marks, *listed
    ), prefix + rest + count * whole


def _signed(number: int) -> int:
    return -(number >> 1) if number & 1 else number >> 1


def find(data: np.ndarray, form: Layout) -> tuple[Decimals, np.ndarray, Layout] | None:
    """Return how the floats of an array are decimals, their bytes as whole numbers, and the layout of these, or None.

    Args:
        data: uint8 [n], the prefix and the floats.
        form: their layout.
    """
    if form.kind != FLOAT or form.width not in _LARGEST:
        return None
    end = form.prefix + (data.size - form.prefix) // form.width * form.width
    raw = data[form.prefix : end].reshape(-1, form.width)
    floats = np.frombuffer(raw.tobytes(), f"{'>' if form.big else '<'}f{form.width}").astype(f"f{form.width}")
    if (digits := _digits_of_columns(floats, form.columns)) is None:
        return None
    numbers, exact = _whole(floats, np.resize(digits, floats.size))
    missing, marks = b"", (0,) * form.columns
    if not exact.all():
        value = _most_frequent(floats[~exact])
        those = floats.view(value.dtype) == value
        missing, exact = raw[np.argmax(those)].tobytes(), exact | those
        marks = tuple(int(numbers[k :: form.columns].min()) - 1 for k in range(form.columns))
        numbers = np.where(those, np.resize(marks, numbers.size), numbers)
    places = np.flatnonzero(~exact)
    if places.size > _SELDOM * floats.size:
        return None
    for place in places:
        numbers[place] = numbers[place - form.columns] if place >= form.columns else 0
    most = int(np.abs(numbers).max())
    whole = next(width for width in WIDTHS if most < 1 << (8 * width - 1))
    found = Decimals(form.width, form.big, whole, form.prefix, digits, missing, marks, places, raw[places])
    before = np.concatenate([data[: form.prefix], data[end:]])
    body = np.frombuffer(numbers.astype(f"<i{whole}").tobytes(), np.uint8)
    layout = Layout(whole, form.columns, SIGNED, 0, before.size, form.across)
    return found, np.concatenate([before, body]), layout


def whole_numbers(data: np.ndarray, form: Layout) -> np.ndarray | None:
    """Return the whole numbers of floats as float64, to judge a sample by, or None if they are not decimals."""
    if (found := find(data, form)) is None:
        return None
    return np.frombuffer(found[1][found[2].prefix :].tobytes(), f"<i{found[2].width}").astype(np.float64)


def restore(data: np.ndarray, found: Decimals, length: int) -> np.ndarray:
    """Return the uint8 [length] of floats whose bytes as whole numbers are `data`."""
    count = (length - found.prefix) // found.width
    begin = data.size - count * found.whole
    numbers = np.frombuffer(data[begin:].tobytes(), f"<i{found.whole}").astype(np.int64)
    floats = _floats(numbers, np.resize(found.digits, count), found.width)
    body = np.frombuffer(floats.astype(f"{'>' if found.big else '<'}f{found.width}").tobytes(), np.uint8).copy()
    rows = body.reshape(-1, found.width)
    if found.missing:
        rows[numbers == np.resize(found.marks, count)] = np.frombuffer(found.missing, np.uint8)
    rows[found.places] = found.others
    return np.concatenate([data[: found.prefix], body, data[found.prefix : begin]])


def _digits_of_columns(floats: np.ndarray, columns: int) -> tuple[int, ...] | None:
    """Return the digits behind the point of each column, or None if they are no decimals."""
    rows = floats[: floats.size // columns * columns].reshape(-1, columns)
    step = max(len(rows) // _SAMPLE, 1)
    found = [_digits(column[::step]) for column in rows.T] if len(rows) else []
    known = tuple(digits for digits in found if digits is not None)
    return known if found and len(known) == len(found) else None


def _digits(sample: np.ndarray) -> int | None:
    """Return the fewest digits behind the point with which nearly all numbers of a sample are decimals, or None."""
    sample = sample[np.isfinite(sample)]
    for digits in range(_POWERS.size):
        _, exact = _whole(sample, np.full(sample.size, digits))
        if np.count_nonzero(~exact) <= _SELDOM * sample.size:
            return digits
    return None


def _most_frequent(floats: np.ndarray) -> np.unsignedinteger:
    """Return the bits of the most frequent of some floats."""
    values, counts = np.unique(floats.view(f"u{floats.dtype.itemsize}"), return_counts=True)
    bits: np.unsignedinteger = values[counts.argmax()]
    return bits


def _whole(floats: np.ndarray, digits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return floats as int64 whole numbers, and which of them are exact and small enough."""
    width = floats.dtype.itemsize
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.rint(floats.astype(np.float64) * _POWERS[digits])
        small = np.abs(scaled) < _LARGEST[width]
    numbers = np.where(small, scaled, 0).astype(np.int64)
    as_bits = f"i{width}"
    return numbers, small & (_floats(numbers, digits, width).view(as_bits) == floats.view(as_bits))


def _floats(numbers: np.ndarray, digits: np.ndarray, width: int) -> np.ndarray:
    """Return the floats of whole numbers: one division, and for 4 bytes one rounding."""
    with np.errstate(over="ignore"):
        floats: np.ndarray = (numbers.astype(np.float64) / _POWERS[digits]).astype(f"f{width}")
    return floats


def _damaged() -> DamagedError:
    return DamagedError("the decimals of an array are impossible: the file is damaged")
