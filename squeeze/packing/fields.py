"""Word layouts of quantised weights, repacked as bytes that entropy coding compresses.

Codes of 2, 4 and 8 bits lie whole in the bytes of their words. Others straddle bytes: codes of 5, 6 and 7 bits get a
byte each, and so do pairs of 3-bit codes. GPTQ packs those down the columns of a matrix, other formats along its rows.
"""

from collections.abc import Callable
from functools import partial
from math import prod

import numpy as np

from squeeze.checkpoint.safetensors import Bytes
from squeeze.errors import DamagedError
from squeeze.packing.tensors import floats
from squeeze.packing.tensors.content import Content, InMemory
from squeeze.system.arena import thread_buffer

BYTES, THREES, THREES_DOWN, FIVES, SEVENS = "bytes", "threes", "threes-down", "fives", "sevens"
KINDS = (BYTES, THREES, THREES_DOWN, FIVES, SEVENS)
_IN_ROWS = (FIVES, SEVENS)  # layouts whose rows have whole groups of words
_UNITS = {THREES: (3, 4), THREES_DOWN: (3, 4), FIVES: (5, 8), SEVENS: (7, 8)}  # bytes before and after repacking
DTYPES = ("I32", "U32")


def relaid(data: Bytes, shape: tuple[int, ...], kind: str) -> Bytes | None:
    """Repack a tensor's bytes to the layout `kind`; return None if its shape does not allow that."""
    if kind == BYTES or not fits(shape, kind):
        return data if kind == BYTES else None
    return _spread_bits(_transposed(data, 3, shape[1]) if kind == THREES_DOWN else data, *_UNITS[kind])


def restored(data: Bytes, shape: tuple[int, ...], kind: str) -> Bytes:
    """Undo `relaid`."""
    if kind == BYTES:
        return data
    found = _joined_bits(data, *_UNITS[kind])
    return _transposed(found, shape[1], 3) if kind == THREES_DOWN else found


def _spread_bits(data: Bytes, unit: int, spread: int) -> Bytes:
    """Spread the bits of each `unit` bytes evenly over `spread` bytes, lowest bits first."""
    units, width = data.reshape(-1, unit), 8 * unit // spread
    out = np.empty((len(units), spread), np.uint8)
    for i in range(spread):
        byte, shift = divmod(i * width, 8)
        field = units[:, byte] >> shift
        if shift + width > 8:
            field |= units[:, byte + 1] << (8 - shift)
        np.bitwise_and(field, (1 << width) - 1, out=out[:, i])
    return out.reshape(-1)


def _joined_bits(data: Bytes, unit: int, spread: int) -> Bytes:
    """Undo `_spread_bits`."""
    fields, width = data.reshape(-1, spread).T, 8 * unit // spread
    out = np.empty((len(data) // spread, unit), np.uint8)
    for byte in range(unit):
        first = 8 * byte // width  # the first field with bits of this byte
        field = fields[first] >> (8 * byte - width * first)
        for i in range(first + 1, -(-8 * (byte + 1) // width)):
            field |= fields[i] << (width * i - 8 * byte)
        out[:, byte] = field
    return out.reshape(-1)


def _transposed(data: Bytes, rows: int, columns: int) -> Bytes:
    """Transpose each of several matrices of uint32 words, [rows, columns]."""
    words = data.view(np.uint32).reshape(-1, rows, columns)
    return np.ascontiguousarray(words.transpose(0, 2, 1)).view(np.uint8).reshape(-1)


def size_of(size: int, kind: str) -> int:
    """Return the bytes that a tensor of `size` bytes has in a layout."""
    if kind == BYTES:
        return size
    unit, spread = _UNITS[kind]
    return size // unit * spread


def fits(shape: tuple[int, ...], kind: str) -> bool:
    """Return whether a tensor of this shape has this layout."""
    if kind == THREES_DOWN:
        return len(shape) == 2 and shape[0] % 3 == 0 and prod(shape) > 0
    if kind in _IN_ROWS:
        return prod(shape) > 0 and len(shape) > 0 and shape[-1] % _UNITS[kind][0] == 0
    return kind == BYTES or (prod(shape) > 0 and prod(shape) % 3 == 0)


def check(shape: tuple[int, ...], kind: str) -> None:
    """Raise DamagedError if a tensor of this shape cannot have this layout."""
    if not fits(shape, kind):
        raise DamagedError("its coding does not fit its shape")


def choose(content: Content, dtype: str, shape: tuple[int, ...]) -> tuple[str, Content]:
    """Return the layout that codes a tensor shortest, and its bytes; "" if the words as they are code shortest."""
    best, kind, shortest = floats.estimate(content, dtype), "", content
    for other in KINDS:
        laid = _relaid(content, shape, other)
        if laid is not None and (bits := floats.estimate(laid, "U8")) < best:
            best, kind, shortest = bits, other, laid
    return kind, shortest


def _relaid(content: Content, shape: tuple[int, ...], kind: str) -> Content | None:
    if isinstance(content, InMemory):
        laid = relaid(content.data, shape, kind)
        return None if laid is None else InMemory(laid)
    if kind == BYTES or not fits(shape, kind):
        return content if kind == BYTES else None
    unit, spread = _UNITS[kind]
    transposed = _Transposed(content, 3, shape[1]) if kind == THREES_DOWN else content
    return _Units(transposed, partial(_spread_bits, unit=unit, spread=spread), unit, spread)


def restored_content(content: Content, shape: tuple[int, ...], kind: str) -> Content:
    """Undo `relaid` for a layout that is read in parts."""
    if kind == BYTES:
        return content
    unit, spread = _UNITS[kind]
    found = _Units(content, partial(_joined_bits, unit=unit, spread=spread), spread, unit)
    return _Transposed(found, shape[1], 3) if kind == THREES_DOWN else found


class _Units:
    """A content in which each `unit` bytes of another one become `spread` bytes."""

    def __init__(self, content: Content, convert: Callable[[Bytes], Bytes], unit: int, spread: int):
        self._content, self._convert, self._unit, self._spread = content, convert, unit, spread
        self.size = content.size // unit * spread

    def fill(self, begin: int, out: Bytes) -> None:
        first, last = begin // self._spread, -(-(begin + out.size) // self._spread)
        data = thread_buffer("units", self._unit * (last - first))
        self._content.fill(self._unit * first, data)
        out[:] = self._convert(data)[begin - self._spread * first :][: out.size]


class _Transposed:
    """A content of groups of `rows` times `columns` words, each transposed. Whole groups are read at once."""

    def __init__(self, content: Content, rows: int, columns: int):
        self._content, self._rows, self._columns, self.size = content, rows, columns, content.size

    def fill(self, begin: int, out: Bytes) -> None:
        group = 4 * self._rows * self._columns
        first, last = begin // group, -(-(begin + out.size) // group)
        data = thread_buffer("transposed", group * (last - first))
        self._content.fill(group * first, data)
        out[:] = _transposed(data, self._rows, self._columns)[begin - group * first :][: out.size]
