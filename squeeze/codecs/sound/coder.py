"""Coding the bytes of a sound, in either direction: its prefix, its samples, and the bytes of a last part of one."""

import numpy as np

from squeeze.codecs.series import Series
from squeeze.codecs.sound import state
from squeeze.codecs.sound.layout import Layout
from squeeze.codecs.sound.model import code_sample
from squeeze.codecs.sound.state import FAST, FULL, MARGIN, SoundModel
from squeeze.numerics.bitmodels import coder as arithmetic
from squeeze.numerics.jit import kernel

__all__ = ["decode", "encode", "memory"]

_PRESETS = (FAST, FULL)


@kernel
def _code_samples(m: SoundModel, coder, coded, first, count, decoding):
    """Code some samples, and return whether there was room for the coded bytes, or enough of them."""
    for i in range(first, first + count):
        code_sample(m, coder, coded, i, decoding)
        if arithmetic.is_over(coder, coded, decoding):
            return False
    return True


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


_SERIES = Series(
    "a sound",
    Layout,
    lambda count, form, full: state.build_model(count, form, _PRESETS[full]),
    lambda m: m.samples[MARGIN:],
    _code_samples,
    _samples,
    _bytes,
)
encode, decode = _SERIES.encode, _SERIES.decode


def memory(length: int) -> int:
    """Estimate the memory in bytes of coding or decoding a sound of `length` bytes."""
    return state.memory(length, FULL)
