"""Coding the bytes of an array, in either direction: its prefix, its numbers, and the bytes of a last part of one."""

import io
import sys

import numpy as np

from squeeze.codecs.array import state
from squeeze.codecs.array.layout import FLOAT, UNSIGNED, Layout
from squeeze.codecs.array.model import code_number
from squeeze.codecs.array.state import FAST, FULL, MARGIN, ArrayModel
from squeeze.codecs.content import Progress
from squeeze.errors import DamagedError
from squeeze.numerics.bitmodels import adaptive, coder as arithmetic
from squeeze.numerics.jit import kernel
from squeeze.system.binary import read_exactly

__all__ = ["decode", "encode", "memory"]

_STEP = 1 << 14  # numbers between two reports of progress
_PRESETS = (FAST, FULL)


@kernel
def _code_numbers(m: ArrayModel, coder, coded, first, count, decoding):
    """Code some numbers, and return whether there was room for the coded bytes, or enough of them."""
    for i in range(first, first + count):
        code_number(m, coder, coded, i, decoding)
        if arithmetic.is_over(coder, coded, decoding):
            return False
    return True


def _code_all(
    m: ArrayModel, ends: list[np.ndarray], coder: np.ndarray, coded: np.ndarray, decoding: bool, progress: Progress
) -> bool:
    """Code the bytes before and after the numbers, and these; return what `_code_numbers` does."""
    entries = np.full(1 << 16 if sum(part.size for part in ends) else 0, adaptive.EVEN, np.uint32)
    for part in ends:
        if not adaptive.code_bytes(part, coder, coded, entries, decoding):
            return False
        if progress:
            progress(part.size)
    numbers, width = m.numbers.size - MARGIN, m.state.bits // 8
    for first in range(0, numbers, _STEP):
        count = min(_STEP, numbers - first)
        if not _code_numbers(m, coder, coded, first, count, decoding):
            return False
        if progress:
            progress(count * width)
    return True


def _cut(data: np.ndarray, form: Layout) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the prefix, the bytes of whole numbers, and those after them."""
    end = form.prefix + (data.size - form.prefix) // form.width * form.width
    return data[: form.prefix], data[form.prefix : end], data[end:]


def encode(data: np.ndarray, form: Layout, full: bool, progress: Progress = None) -> bytes | None:
    """Return the payload of an array, or None if it is not shorter.

    Args:
        data: uint8 [n], the prefix and the numbers.
        form: their layout.
        full: use the whole model.
        progress: is called with the number of bytes coded since its last call.
    """
    prefix, body, rest = _cut(data, form)
    m = state.build_model(body.size // form.width, form, _PRESETS[full])
    m.numbers[MARGIN:] = _numbers(body, form)
    coder, coded = np.zeros(3, np.uint64), np.zeros(data.size + 4 * arithmetic.SPARE, np.uint8)
    arithmetic.start_encoder(coder)
    if not _code_all(m, [prefix.copy(), rest.copy()], coder, coded, False, progress):
        return None
    payload = bytes([full]) + form.to_bytes() + coded[: arithmetic.finish_encoder(coder, coded)].tobytes()
    return payload if len(payload) < data.size else None


def decode(payload: bytes, length: int, progress: Progress = None) -> np.ndarray:
    """Return the uint8 [length] of a payload.

    Raises:
        DamagedError: if the payload is invalid.
    """
    file = io.BytesIO(payload)
    full = read_exactly(file, 1)[0]
    if full > 1:
        raise _damaged()
    form = Layout.read(file, length)
    data = np.zeros(length, np.uint8)
    prefix, body, rest = _cut(data, form)
    m = state.build_model(body.size // form.width, form, _PRESETS[full])
    coder, coded = np.zeros(3, np.uint64), np.frombuffer(bytearray(file.read()), np.uint8)
    arithmetic.start_decoder(coder, coded)
    if not _code_all(m, [prefix, rest], coder, coded, True, progress):
        raise _damaged()
    body[:] = _bytes(m.numbers[MARGIN:], form)
    return data


def memory(length: int) -> int:
    """Estimate the memory in bytes of coding or decoding an array of `length` bytes."""
    return state.memory(length, FULL)


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


def _damaged() -> DamagedError:
    return DamagedError("the coded bytes of an array are impossible: the file is damaged")
