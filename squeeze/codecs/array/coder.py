"""Coding the bytes of an array, in either direction: its prefix, its numbers, and the bytes of a last part of one."""

import io
import sys

import numpy as np

from squeeze.codecs.array import decimals, state
from squeeze.codecs.array.layout import FLOAT, UNSIGNED, Layout
from squeeze.codecs.array.model import code_number
from squeeze.codecs.array.state import FAST, FULL, MARGIN, ArrayModel
from squeeze.codecs.content import Progress
from squeeze.codecs.series import Series
from squeeze.numerics.bitmodels import coder as arithmetic
from squeeze.numerics.jit import kernel

__all__ = ["decode", "encode", "memory"]

_PRESETS = (FAST, FULL)


@kernel
def _code_numbers(m: ArrayModel, coder, coded, first, count, decoding):
    """Code some numbers, and return whether there was room for the coded bytes, or enough of them."""
    for i in range(first, first + count):
        code_number(m, coder, coded, i, decoding)
        if arithmetic.is_over(coder, coded, decoding):
            return False
    return True


def _numbers(body: np.ndarray, form: Layout) -> np.ndarray:
    """Return int64 [numbers], in the order of what they stand for."""
    raw = body.tobytes()
    order, kind = ">" if form.big else "<", "u" if form.kind == UNSIGNED else "i"
    numbers = np.frombuffer(raw, f"{order}{kind}{form.width}")
    return _ordered(numbers.astype(np.int64), form)


def _ordered(numbers: np.ndarray, form: Layout) -> np.ndarray:
    """Return numbers of a kind as signed ones of the same order, or these as those of the kind."""
    if form.kind == UNSIGNED:
        return numbers ^ np.int64(-(1 << 63)) if form.width == 8 else numbers - (1 << (form.bits - 1))
    if form.kind == FLOAT:
        return np.where(numbers < 0, numbers ^ np.int64((1 << (form.bits - 1)) - 1), numbers)
    return numbers


def _bytes(numbers: np.ndarray, form: Layout) -> np.ndarray:
    """Return the bytes of numbers."""
    if form.kind == UNSIGNED and form.width < 8:
        numbers = numbers + (1 << (form.bits - 1))
    else:
        numbers = _ordered(numbers, form)
    rows = np.ascontiguousarray(numbers).view(np.uint8).reshape(-1, 8)
    if sys.byteorder == "big":
        rows = rows[:, ::-1]
    rows = rows[:, : form.width]
    return (rows[:, ::-1] if form.big else rows).ravel()


_SERIES = Series(
    "an array",
    Layout,
    lambda count, form, full: state.build_model(count, form, _PRESETS[full]),
    lambda m: m.numbers[MARGIN:],
    _code_numbers,
    _numbers,
    _bytes,
)


def encode(data: np.ndarray, form: Layout, full: bool, progress: Progress = None) -> bytes | None:
    """Return the payload of an array, or None if it is not shorter.

    Args:
        data: uint8 [n], the prefix and the numbers.
        form: their layout.
        full: use the whole model.
        progress: is called with the number of bytes coded since its last call.
    """
    if not (found := decimals.find(data, form)):
        return _SERIES.encode(data, form, full, progress)
    head, numbers, layout = found[0].to_bytes(), found[1], found[2]
    payload = _SERIES.encode(numbers, layout, full, progress)
    if payload is None or len(head) + len(payload) >= data.size:
        return None
    if progress:
        progress(data.size - numbers.size)
    return head + payload


def decode(payload: bytes, length: int, progress: Progress = None) -> np.ndarray:
    """Return the uint8 [length] of a payload.

    Raises:
        DamagedError: if the payload is invalid.
    """
    if payload[:1] != bytes([decimals.MARK]):
        return _SERIES.decode(payload, length, progress)
    file = io.BytesIO(payload[1:])
    found, size = decimals.read(file, length)
    data = decimals.restore(_SERIES.decode(file.read(), size, progress), found, length)
    if progress:
        progress(length - size)
    return data


def memory(length: int) -> int:
    """Estimate the memory in bytes of coding or decoding an array of `length` bytes."""
    return state.memory(length, FULL)
