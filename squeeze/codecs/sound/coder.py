"""Coding the bytes of a sound, in either direction: its prefix, its samples, and the bytes of a last part of one."""

import io

import numpy as np

from squeeze.codecs.content import Progress
from squeeze.codecs.sound import state
from squeeze.codecs.sound.layout import Layout
from squeeze.codecs.sound.model import code_sample
from squeeze.codecs.sound.state import FAST, FULL, MARGIN, SoundModel
from squeeze.errors import DamagedError
from squeeze.numerics.bitmodels import adaptive, coder as arithmetic
from squeeze.numerics.jit import kernel
from squeeze.system.binary import read_exactly

__all__ = ["decode", "encode", "memory"]

_STEP = 1 << 14  # samples between two reports of progress
_PRESETS = (FAST, FULL)


@kernel
def _code_samples(m: SoundModel, coder, coded, first, count, decoding):
    """Code some samples, and return whether there was room for the coded bytes, or enough of them."""
    for i in range(first, first + count):
        code_sample(m, coder, coded, i, decoding)
        if arithmetic.is_over(coder, coded, decoding):
            return False
    return True


def _code_all(
    m: SoundModel, ends: list[np.ndarray], coder: np.ndarray, coded: np.ndarray, decoding: bool, progress: Progress
) -> bool:
    """Code the bytes before and after the samples, and these; return what `_code_samples` does."""
    entries = np.full(1 << 16 if sum(part.size for part in ends) else 0, adaptive.EVEN, np.uint32)
    for part in ends:
        if not adaptive.code_bytes(part, coder, coded, entries, decoding):
            return False
        if progress:
            progress(part.size)
    samples, width = m.samples.size - MARGIN, m.state.bits // 8
    for first in range(0, samples, _STEP):
        count = min(_STEP, samples - first)
        if not _code_samples(m, coder, coded, first, count, decoding):
            return False
        if progress:
            progress(count * width)
    return True


def _cut(data: np.ndarray, form: Layout) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the prefix, the bytes of whole samples, and those after them."""
    end = form.prefix + (data.size - form.prefix) // form.width * form.width
    return data[: form.prefix], data[form.prefix : end], data[end:]


def encode(data: np.ndarray, form: Layout, full: bool, progress: Progress = None) -> bytes | None:
    """Return the payload of a sound, or None if it is not shorter.

    Args:
        data: uint8 [n], the prefix and the samples.
        form: their layout.
        full: use the whole model.
        progress: is called with the number of bytes coded since its last call.
    """
    prefix, body, rest = _cut(data, form)
    m = state.build_model(body.size // form.width, form, _PRESETS[full])
    m.samples[MARGIN:] = _samples(body, form)
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
    body[:] = _bytes(m.samples[MARGIN:], form)
    return data


def memory(length: int) -> int:
    """Estimate the memory in bytes of coding or decoding a sound of `length` bytes."""
    return state.memory(length, FULL)


def _samples(body: np.ndarray, form: Layout) -> np.ndarray:
    """Return int64 [samples], with a sign."""
    rows = body.reshape(-1, form.width)
    rows = rows if form.big else rows[:, ::-1]
    samples, half = np.zeros(len(rows), np.int64), 1 << (form.bits - 1)
    for column in rows.T:
        samples = samples << 8 | column
    return samples - half if form.unsigned else (samples ^ half) - half


def _bytes(samples: np.ndarray, form: Layout) -> np.ndarray:
    """Return the bytes of samples."""
    rows = np.zeros((samples.size, form.width), np.uint8)
    values = samples + (1 << (form.bits - 1)) if form.unsigned else samples
    for k in range(form.width):
        rows[:, k if not form.big else form.width - 1 - k] = values >> 8 * k & 255
    return rows.ravel()


def _damaged() -> DamagedError:
    return DamagedError("the coded bytes of a sound are impossible: the file is damaged")
