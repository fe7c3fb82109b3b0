"""Choices of the float encoder: how many bits are prefix, and which segments share a frequency table.

Nothing here affects a decoder: floating point is free to differ between machines.
"""

import struct
from dataclasses import dataclass

import numpy as np

from squeeze.codecs.tensors import rans
from squeeze.codecs.tensors.float_payload import CHOICES, HEAD, LAYOUTS, MAX_TABLES, PLANE, WORDS, Array, tables_text
from squeeze.numerics.jit import kernel

_MAX_PREFIX = 13  # bits
_PIECE = 1 << 16  # values cut into planes at a time
_CLUSTERED = 96  # segments that choose the frequency tables
_SAMPLE_RUNS, _SAMPLE_RUN = 8, 1 << 12  # values that choose the prefix length


def take_plane(values: Array, widths: tuple[int, ...], number: int, bits: int, rotated: bool) -> Array:
    """Plane `number` of every value."""
    below = sum(widths[number + 1 :])
    plane, kind = np.empty(values.size, WORDS[widths[number]]), values.dtype.type
    for start in range(0, values.size, _PIECE):
        piece = values[start : start + _PIECE]
        if rotated and below:
            shifted = piece >> kind(below - 1)
        elif rotated:
            shifted = (piece << kind(1)) | (piece >> kind(bits - 1))
        else:
            shifted = piece >> kind(below)
        plane[start : start + _PIECE] = shifted.astype(plane.dtype)
    return plane


def choose(values: Array, bits: int, rotated: bool, lanes: int, rows: int) -> tuple[int, list[int], float]:
    """The layout and each plane's prefix length that code a sample of `values` shortest, and the bits they need."""
    runs = max(1, min(_SAMPLE_RUNS, values.size // _SAMPLE_RUN))
    if runs == _SAMPLE_RUNS:
        steps = np.linspace(0, values.size - _SAMPLE_RUN, runs).astype(np.int64)
        sample = np.concatenate([values[at : at + _SAMPLE_RUN] for at in steps])
    else:
        sample = values
    segments = -(-values.size // (lanes * rows))
    fixed = 32.0 * segments * (lanes + 1)  # bits of states and word counts
    best: tuple[int, list[int], float] | None = None
    for layout in CHOICES[bits, rotated]:
        widths = LAYOUTS[layout]
        prefixes, total = [], 8.0 * (HEAD.size + len(widths) * PLANE.size)
        for number, width in enumerate(widths):
            if len(widths) == 1:
                plane, rotate = sample, width if rotated else 0
            else:
                plane, rotate = take_plane(sample, widths, number, bits, rotated), 0
            costs = np.zeros(_MAX_PREFIX + 1)
            histogram = np.zeros(1 << min(width, _MAX_PREFIX), np.int64)
            prefix_costs(plane, rotate, width, values.size, fixed, histogram, costs)
            prefix = int(costs.argmin())
            prefixes.append(prefix)
            total += float(costs[prefix])
        if best is None or total < best[2]:
            best = layout, prefixes, total
    assert best
    return best


@kernel
def prefix_costs(sample, rotate, width, count, fixed, histogram, costs):
    """Estimate the bits of `count` values like `sample` for each number of prefix bits, into `costs`.

    fixed: bits that coding costs beside the code. histogram: int64 [2^longest prefix], zeroed.
    """
    longest = 0
    while (1 << longest) < histogram.size:
        longest += 1
    shift, turn = np.uint64(width - longest), np.uint64(rotate)
    for i in range(sample.size):
        histogram[rans.rotated(sample[i], turn) >> shift] += 1
    for prefix in range(costs.size):
        costs[prefix] = 1e300
    scale = np.float64(count) / np.float64(sample.size)
    most = 256 if count == sample.size else 200  # a sample lacks rare prefixes
    costs[0] = np.float64(count) * width
    size = histogram.size
    for prefix in range(longest, 0, -1):
        used, bits = 0, np.float64(0.0)
        for i in range(size):
            if histogram[i]:
                used += 1
                bits -= np.float64(histogram[i]) * np.log2(np.float64(histogram[i]) / np.float64(sample.size))
        raw = np.float64(count) * (width - prefix)
        if used == 1:
            costs[prefix] = raw + 16.0
        elif used <= most or prefix <= 8:
            costs[prefix] = raw + bits * scale + fixed + 14.0 * used
        for i in range(size >> 1):
            histogram[i] = histogram[2 * i] + histogram[2 * i + 1]
        size >>= 1


@dataclass(frozen=True)
class PlaneModel:
    """The frequency tables of a plane, and which segment uses which."""

    precision: int  # 0 where all prefixes are one
    symbols: Array  # uint8 [2^prefix bits]
    frequencies: list[Array]
    ids: Array
    text: bytes  # as it stands in the payload

    @classmethod
    def build(cls, histogram: Array, used: Array, size: int) -> "PlaneModel":
        """From the counts [segments, used prefixes]."""
        symbols = np.zeros(size, np.uint8)
        symbols[used] = np.arange(used.size)
        ids = np.zeros(histogram.shape[0], np.uint8)
        if used.size == 1:
            return cls(0, symbols, [], ids, struct.pack("<H", int(used[0])))
        values = int(histogram.sum(dtype=np.int64))
        precision = rans.MAX_PRECISION if values >= 1 << 15 else 11 if values >= 1 << 12 else 10
        groups = _cluster(histogram, 14.0 * used.size)
        ids[:] = groups
        tables = []
        for group in range(int(groups.max()) + 1):
            frequencies = np.zeros(used.size, np.int64)
            rans.quantise(histogram[groups == group].sum(0, dtype=np.int64), precision, frequencies)
            tables.append(frequencies)
        return cls(precision, symbols, tables, ids, tables_text(used, tables))


def _cluster(histogram: Array, table_bits: float) -> Array:
    """A group for each segment [segments], so that a table a group codes them shortest (k-means on code lengths).

    The groups' tables are found on some of the segments, then each segment takes the one that suits it.
    """
    segments, symbols = histogram.shape
    groups = np.zeros(segments, np.int64)
    if segments < 8:
        return groups
    sample = np.ascontiguousarray(histogram[:: -(-segments // _CLUSTERED)])
    share = sample.shape[0] / segments
    total = sample.sum(0, dtype=np.float64)
    best_cost, best_lengths = _code_length(total) + table_bits * share, None
    order = np.argsort(sample @ np.arange(symbols, dtype=np.float64) / sample.sum(1))
    for size in (2, 4, MAX_TABLES):
        if sample.shape[0] < 2 * size:
            break
        assigned, sums = np.empty(sample.shape[0], np.int64), np.empty((size, symbols))
        assigned[order] = np.arange(sample.shape[0]) * size // sample.shape[0]
        for _ in range(4):
            lengths = _group_lengths(sample, assigned, sums, total / sample.shape[0])
            assign_groups(sample, lengths, assigned)
        _group_lengths(sample, assigned, sums, total * 0)
        cost = sum(_code_length(row) + table_bits * share for row in sums if row.any()) + 8 * sample.shape[0]
        if cost >= best_cost * 0.9998:
            break
        best_cost, best_lengths = cost, lengths
    if best_lengths is None:
        return groups
    assign_groups(histogram, best_lengths, groups)
    return np.unique(groups, return_inverse=True)[1]


def _group_lengths(histogram: Array, groups: Array, sums: Array, mean: Array) -> Array:
    """Fills `sums` with each group's counts; returns the code lengths they give, smoothed by the `mean` segment."""
    sums[:] = 0
    sum_groups(histogram, groups, sums)
    smooth = sums + 0.02 * mean + 1e-9
    return -np.log2(smooth / smooth.sum(1, keepdims=True))


@kernel
def sum_groups(histogram, groups, sums):
    for segment in range(histogram.shape[0]):
        for symbol in range(histogram.shape[1]):
            sums[groups[segment], symbol] += np.float64(histogram[segment, symbol])


@kernel
def assign_groups(histogram, lengths, groups):
    """Put each segment in the group whose code lengths [groups, symbols] code it shortest."""
    for segment in range(histogram.shape[0]):
        best = np.float64(1e300)
        for group in range(lengths.shape[0]):
            cost = np.float64(0.0)
            for symbol in range(histogram.shape[1]):
                cost += np.float64(histogram[segment, symbol]) * lengths[group, symbol]
            if cost < best:
                best = cost
                groups[segment] = group


def _code_length(counts: Array) -> float:
    """Bits of an ideal code of these counts."""
    counts = counts[counts > 0]
    return float(-(counts * np.log2(counts / counts.sum())).sum())
