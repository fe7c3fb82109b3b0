"""Samples without a header: data whose bytes are sound beyond doubt, such as what follows in the blocks of a long one.

Windows of the data are read as samples in each way. Sound is smooth: two samples before it predict much
of each sample.
"""

import numpy as np

from squeeze.codecs.sound.layout import Layout

__all__ = ["find_raw"]

_LEAST = 1 << 16  # bytes of sound that are worth the search
_WINDOW, _WINDOWS = 4096, 6
_WAYS = tuple((width, channels, big) for width in (2, 3) for channels in (1, 2) for big in (0, 1))
_SAVED = 1.5  # bits of a sample that prediction must save, in each window that is not still
_STILL = 2.0  # bits of a sample, up to which a window says nothing


def find_raw(data: np.ndarray) -> Layout | None:
    """Return the layout of uint8 `data` as one sound, or None if it may be something else."""
    if data.size < _LEAST:
        return None
    best, most = None, 0.0
    for width, channels, big in _WAYS:
        frame = width * channels
        for shift in range(frame):
            form = Layout(width, channels, big, 0, shift)
            saved = _saved(data, form)
            if saved > most:
                best, most = form, saved
    return best


def _saved(data: np.ndarray, form: Layout) -> float:
    """Return the least bits of a sample that prediction saves in a window, or 0 if that is too little."""
    step, saved = (data.size - 2 * _WINDOW) // _WINDOWS, list[float]()
    for k in range(_WINDOWS):
        start = form.prefix + k * step // form.frame * form.frame
        values = _samples(data[start : start + _WINDOW // form.frame * form.frame], form)
        plain = _entropy(values >> 8) + _entropy(values & 255)
        rest = values[2 * form.channels :] - 2 * values[form.channels : -form.channels] + values[: -2 * form.channels]
        flat = values[form.channels :] - values[: -form.channels]
        coded = min(float(np.log2(np.abs(one) + 1).mean()) for one in (rest, flat)) + 2
        if plain > _STILL:
            saved.append(plain - coded)
        if plain > _STILL and saved[-1] < _SAVED:
            return 0.0
    return sum(saved) / len(saved) if len(saved) > 2 else 0.0


def _samples(part: np.ndarray, form: Layout) -> np.ndarray:
    """Return int64 [samples] of some bytes."""
    rows = part.reshape(-1, form.width)
    rows = rows if form.big else rows[:, ::-1]
    values = rows[:, 0].astype(np.int8).astype(np.int64)
    for column in rows.T[1:]:
        values = values << 8 | column
    return values


def _entropy(values: np.ndarray) -> float:
    """Return the bits of a value by the frequencies of all."""
    counts = np.unique(values, return_counts=True)[1]
    return float(np.log2(values.size) - (counts * np.log2(counts)).sum() / values.size)
