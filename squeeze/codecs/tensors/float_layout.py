"""How a tensor is cut into planes, and which bits of each are coded: what codes a sample of it shortest.

Nothing here affects a decoder: floating point is free to differ between machines.
"""

import threading
from dataclasses import dataclass
from functools import cache

import numpy as np

from squeeze.codecs.tensors.content import Content, bytes_of
from squeeze.codecs.tensors.float_payload import CHOICES, LAYOUTS, Array
from squeeze.codecs.tensors.planes import collect, tally
from squeeze.numerics.jit import inline, kernel, lossy_kernel

_MAX_PREFIX = 13  # bits
_SAMPLE_RUNS, _SAMPLE_RUN = 8, 1 << 12  # values of the sample
_own = threading.local()
_LOGS = np.arange(1 << 12) * np.log2(np.maximum(np.arange(1 << 12), 1))


@dataclass(frozen=True)
class Choice:
    """How a tensor is cut: what codes a sample of it shortest."""

    layout: int
    prefixes: tuple[int, ...]  # bits of each plane's prefix
    cost: float  # bits that all of it takes, about
    counts: tuple[Array, ...] | None  # of each plane, how often each prefix is there, [1, 2^bits]; None of a sample


def sample_of(content: Content, kind: type) -> Array:
    """Values of a tensor, of type `kind`, that stand for all: all of them, of a small one."""
    width = np.dtype(kind).itemsize
    count = content.size // width
    if count < _SAMPLE_RUNS * _SAMPLE_RUN:
        return bytes_of(content).view(kind)
    step = (count - _SAMPLE_RUN) // (_SAMPLE_RUNS - 1)
    sample: Array = np.empty((_SAMPLE_RUNS, _SAMPLE_RUN), kind)
    for at, run in enumerate(sample):
        content.fill(at * step * width, run.view(np.uint8))
    return sample.reshape(-1)


def choose(sample: Array, count: int, bits: int, rotated: bool, lanes: int, rows: int) -> Choice:
    """Measures a sample of `count` values."""
    fixed = 32.0 * -(-count // (lanes * rows)) * (lanes + 1)  # bits of states and word counts
    widths, longest = _shapes(bits, rotated)
    own, found, total = space(), np.empty(widths.shape, np.int64), np.empty(1)
    best = choose_layout(
        *(sample, bits if rotated else 0, bits, widths, longest, count, fixed, _LOGS),
        *(own.tables, own.histograms, own.room, own.costs, found, total),
    )
    layout = CHOICES[bits, rotated][best]
    prefixes, counts = tuple(found[best, : len(LAYOUTS[layout])].tolist()), None
    if sample.size == count:
        tops = [sum(LAYOUTS[layout][number:]) for number in range(len(prefixes))]
        leading = [own.histograms[top // 8 - 1, : 1 << int(longest[top // 8 - 1])] for top in tops]
        planes = zip(leading, prefixes, strict=True)
        counts = tuple(part.reshape(1, 1 << prefix, -1).sum(2) for part, prefix in planes)
    return Choice(layout, prefixes, float(total[0]), counts)


@cache
def _shapes(bits: int, rotated: bool) -> tuple[Array, Array]:
    """The widths of each choice's planes, int64 [choices, 8], 0 after the last; and the longest prefix of planes whose
    highest bit lies just below bit 8 (i + 1), int64 [8]."""
    widths, longest = np.zeros((len(CHOICES[bits, rotated]), 8), np.int64), np.zeros(8, np.int64)
    for row, layout in zip(widths, CHOICES[bits, rotated], strict=True):
        row[: len(LAYOUTS[layout])] = LAYOUTS[layout]
        for number, width in enumerate(LAYOUTS[layout]):
            place = sum(LAYOUTS[layout][number:]) // 8 - 1
            longest[place] = max(longest[place], min(width, _MAX_PREFIX))
    return widths, longest


@kernel
def choose_layout(
    sample, rotate, bits, layouts, longest, count, fixed, logs, tables, histograms, room, costs, prefixes, total
):
    """The layout that codes `count` values like `sample` shortest, in `total` bits, about.

    prefixes: int64 [layouts, 8], filled with the prefix bits of each plane. layouts and longest: see `_shapes`. fixed
    and logs: see `_prefix_costs`. histograms: int64 [8, 2^13], filled where planes begin. Working space: tables as
    `count_prefixes` has them, room uint32 [2^13], costs float64 [14].
    """
    best, counted = 0, 0
    total[0] = 1e300
    for layout in range(layouts.shape[0]):
        bits_of_all, top = 128.0, bits  # of the header
        for number in range(layouts.shape[1]):
            width = layouts[layout, number]
            if width == 0:
                break
            place = (top >> 3) - 1
            histogram = histograms[place][: 1 << longest[place]]
            if not (counted >> place) & 1:
                counted |= 1 << place
                for k in range(histogram.size):
                    histogram[k] = 0
                end = np.uint64(sample.size)
                tally(sample, rotate, top - longest[place], np.uint64(0), end, histogram.size, tables)
                collect(tables, histogram)
            _prefix_costs(histogram, sample.size, width, count, fixed, logs, room, costs)
            least = 0
            for prefix in range(costs.size):
                least = prefix if costs[prefix] < costs[least] else least
            prefixes[layout, number] = least
            bits_of_all += 128.0 + costs[least]  # with the plane's entry
            top -= width
        if bits_of_all < total[0]:
            best, total[0] = layout, bits_of_all
    return best


@inline
def _prefix_costs(histogram, sampled, width, count, fixed, logs, found, costs):
    """Estimate the bits of a plane of `count` values for each number of prefix bits, into `costs`.

    histogram: int64 [2^longest prefix], of `sampled` of the values; it is kept. fixed: bits that coding costs beside
    the code. logs: float64, n log2(n) of small n. found: uint32 [2^longest prefix], working space.
    """
    size, longest = np.uint64(histogram.size), 0
    while (1 << longest) < histogram.size:
        longest += 1
    for k in range(size):
        found[k] = np.uint32(histogram[k])
    scale, whole = np.float64(count) / np.float64(sampled), np.float64(sampled) * np.log2(np.float64(sampled))
    most = 256 if count == sampled else 200  # a sample lacks rare prefixes
    for prefix in range(costs.size):
        costs[prefix] = 1e300
    costs[0] = np.float64(count) * width
    for prefix in range(longest, 0, -1):
        if prefix <= width:
            used, raw = 0, np.float64(count) * (width - prefix)
            for k in range(size):
                used += 1 if found[k] else 0
            if used == 1:
                costs[prefix] = raw + 16.0
            elif used <= most or prefix <= 8:
                costs[prefix] = raw + (whole - _sum_of_logs(found, size, logs)) * scale + fixed + 14.0 * used
        size >>= np.uint64(1)
        for k in range(size):
            found[k] = found[np.uint64(2) * k] + found[np.uint64(2) * k + np.uint64(1)]


@lossy_kernel(fastmath=True)
def _sum_of_logs(counts, size, logs):
    """The sum of n log2(n) of the first `size` counts."""
    total = np.float64(0.0)
    for k in range(size):
        n = np.uint64(counts[k])
        if n < np.uint64(logs.size):
            total += logs[n]
        else:
            total += np.float64(n) * np.log2(np.float64(n))
    return total


class Space:
    """Working space of a thread."""

    def __init__(self) -> None:
        size = 1 << _MAX_PREFIX
        self.tables = np.zeros((4, size), np.uint32)  # what counts in them leaves zeros behind
        self.histograms, self.room = np.empty((8, size), np.int64), np.empty(size, np.uint32)
        self.costs = np.empty(_MAX_PREFIX + 1)


def space() -> Space:
    if not hasattr(_own, "space"):
        _own.space = Space()
    own: Space = _own.space
    return own
