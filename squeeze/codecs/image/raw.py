"""Rows of bits without a header: data that is an image of two colours beyond doubt, such as a page of a fax.

Such bytes are mostly equal to those before and above them, and where they are not, few of their bits change. Where rows
begin is found by their period. A wrong guess costs time: the block is coded as an image only if that is smaller.
"""

import numpy as np

from squeeze.codecs.image.layout import Layout

__all__ = ["find_raw"]

_LEAST = 1 << 13  # bytes of the smallest image
_SAMPLE = 1 << 17  # bytes in which rows are looked for
_SHORTEST, _LONGEST = 4, 1 << 13  # bytes of a row
_CANDIDATES = 16
_MOST_BLACK = 0.6  # share of bytes that are neither 0 nor 255
_LEAST_BLACK = 1 << 9  # such bytes that tell rows from others
_MOST_CHANGES = 2.4  # bits of such a byte that differ from the one before, on average: those of noise are 3.5
_MOST_ABOVE = 1.9  # bits of such a byte that differ from the byte above, on average: those of noise are 4


def find_raw(data: np.ndarray) -> Layout | None:
    """Return the layout of uint8 `data` as one image of two colours, or None if it may be something else."""
    if data.size < _LEAST:
        return None
    begin = max(data.size - _SAMPLE, 0) // 2
    sample = data[begin : begin + _SAMPLE]
    edges = (sample != 0) & (sample != 255)
    count = int(np.count_nonzero(edges))
    if not _LEAST_BLACK <= count <= _MOST_BLACK * sample.size:
        return None
    changes = np.bitwise_count((sample ^ sample >> 1) & 127)
    if changes[edges].mean() > _MOST_CHANGES:
        return None
    costs = {stride: _above(sample, edges, stride) for stride in _periods(sample)}
    if not costs or min(costs.values()) > _MOST_ABOVE:
        return None
    return Layout(8 * min(costs, key=costs.__getitem__), 1, 1)


def _periods(sample: np.ndarray) -> list[int]:
    """Return the distances at which bytes have the most nearly equal numbers of ones.

    Products of whole numbers are whole: rounded, they do not depend on how a library computes them.
    """
    ones = np.bitwise_count(sample).astype(np.float64)
    ones -= np.rint(ones.mean())
    most = min(_LONGEST, sample.size // 8)
    spectrum = np.abs(np.fft.rfft(ones, 1 << int(sample.size + most).bit_length())) ** 2
    alike = np.rint(np.fft.irfft(spectrum)[: most + 1])
    alike[:_SHORTEST] = -np.inf
    peaks = 1 + np.flatnonzero((alike[1:-1] >= alike[:-2]) & (alike[1:-1] >= alike[2:]))
    best = peaks[np.argsort(-alike[peaks], kind="stable")[:_CANDIDATES]]
    return [int(stride) for stride in best if np.isfinite(alike[stride])]


def _above(sample: np.ndarray, edges: np.ndarray, stride: int) -> float:
    """Return how many bits of bytes at edges differ from those of the row above, on average."""
    differing = np.bitwise_count(sample[stride:] ^ sample[:-stride])
    return float(differing[edges[stride:]].mean()) if edges[stride:].any() else 8.0
