"""Choices of the float encoder: how many bits are prefix, and which segments share a frequency table.

Nothing here affects a decoder: floating point is free to differ between machines.
"""

import math
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import numpy as np

from squeeze.codecs.tensors import rans
from squeeze.codecs.tensors.float_payload import CHOICES, HEAD, LAYOUTS, MAX_TABLES, PLANE, Array
from squeeze.codecs.tensors.planes import choose_groups, count_prefixes
from squeeze.codecs.tensors.tables import quantise, tables_text
from squeeze.numerics.jit import kernel, lossy_kernel

T = TypeVar("T")
_MAX_PREFIX = 13  # bits
_LEAST_CLUSTERED = 8  # segments
_CLUSTERED = 96  # segments that choose the frequency tables
_SAMPLE_RUNS, _SAMPLE_RUN = 8, 1 << 12  # values that choose the prefix length
_UNKNOWN = 20.0  # bits of a prefix that is not in the sample
_LOGS = np.arange(1 << 12) * np.log2(np.maximum(np.arange(1 << 12), 1))


@dataclass(frozen=True)
class Choice:
    """How a tensor is cut: what codes a sample of it shortest."""

    layout: int
    prefixes: tuple[int, ...]  # bits of each plane's prefix
    cost: float  # bits that all of it takes, about
    histograms: dict[int, Array]  # of planes that begin below a bit: how often the leading bits are there
    is_whole: bool  # whether the sample is all of it

    def counts(self, top: int, prefix_bits: int) -> Array | None:
        """How often each prefix of the plane below bit `top` is there, [1, 2^prefix_bits]; None where not all is
        known."""
        return self.histograms[top].reshape(1, 1 << prefix_bits, -1).sum(2) if self.is_whole else None


def choose(values: Array, bits: int, rotated: bool, lanes: int, rows: int) -> Choice:
    """Measures a sample of `values`."""
    runs = max(1, min(_SAMPLE_RUNS, values.size // _SAMPLE_RUN))
    sample = values
    if runs == _SAMPLE_RUNS:
        step = (values.size - _SAMPLE_RUN) // (runs - 1)
        sample = np.concatenate([values[at * step : at * step + _SAMPLE_RUN] for at in range(runs)])
    fixed = 32.0 * -(-values.size // (lanes * rows)) * (lanes + 1)  # bits of states and word counts
    best, histograms = Choice(0, (), math.inf, {}, False), {}
    for layout in CHOICES[bits, rotated]:
        widths, prefixes, top = LAYOUTS[layout], [], bits
        total = 8.0 * (HEAD.size + len(widths) * PLANE.size)
        for width in widths:
            if top not in histograms:
                longest = _longest(bits, top)
                rotate, below = bits if rotated else 0, top - longest
                histograms[top] = _counts(sample, rotate, below, longest, sample.size, 1)[0]
            costs, room = np.empty(_MAX_PREFIX + 1), np.empty(histograms[top].size, np.uint32)
            prefix_costs(histograms[top], sample.size, width, values.size, fixed, _LOGS, room, costs)
            prefixes.append(int(costs.argmin()))
            total += float(costs[prefixes[-1]])
            top -= width
        if total < best.cost:
            best = Choice(layout, tuple(prefixes), total, histograms, sample is values)
    return best


@cache
def _longest(bits: int, top: int) -> int:
    """The most prefix bits of a plane of `bits` wide values whose highest bit lies just below bit `top`."""
    layouts = [layout for layout in LAYOUTS if sum(layout) == bits]
    widths = [width for layout in layouts for i, width in enumerate(layout) if sum(layout[i:]) == top]
    return min(_MAX_PREFIX, max(widths))


def _counts(
    values: Array, rotate: int, below: int, prefix_bits: int, per_segment: int, threads: int, step: int = 0
) -> Array:
    """How often each prefix is there, [1, 2^prefix_bits], or in every `step`th segment, [segments / step, ...]."""
    segments = -(-values.size // per_segment)
    rows = np.zeros((-(-segments // step), 1 << prefix_bits), np.uint32) if step else None

    def work(first: int, last: int) -> Array:
        tables = np.zeros((4, 1 << prefix_bits), np.uint32)
        found = np.zeros((1, 1 << prefix_bits), np.int64) if rows is None else rows
        first = -(-first // (step or 1)) * (step or 1)
        count_prefixes(values, rotate, below, first, last, per_segment, step or 1, tables, found)
        return found

    found = spread(work, segments, threads)
    return found[0] if rows is not None or len(found) == 1 else np.sum(found, axis=0)


@kernel
def prefix_costs(histogram, sampled, width, count, fixed, logs, found, costs):
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
        used = np.uint32(0)
        for k in range(size):
            used += np.uint32(found[k] > np.uint32(0))
        raw = np.float64(count) * (width - prefix)
        if prefix > width:
            pass
        elif used == 1:
            costs[prefix] = raw + 16.0
        elif used <= most or prefix <= 8:
            bits = whole
            for k in range(size):
                n = np.uint64(found[k])
                bits -= logs[n] if n < np.uint64(logs.size) else np.float64(n) * np.log2(np.float64(n))
            costs[prefix] = raw + bits * scale + fixed + 14.0 * used
        size >>= np.uint64(1)
        for k in range(size):
            found[k] = found[np.uint64(2) * k] + found[np.uint64(2) * k + np.uint64(1)]


@dataclass(frozen=True)
class PlaneModel:
    """The frequency tables of a plane, and which segment uses which."""

    precision: int  # 0 where all prefixes are one
    prefix_bits: int
    prefixes: Array  # int64 [symbols]
    frequencies: list[Array]
    ids: Array  # uint8 [segments]
    text: bytes  # as it stands in the payload

    @classmethod
    def build(
        cls, values: Array, rotate: int, below: int, prefix_bits: int, per_segment: int, threads: int,
        counts: Array | None,
    ) -> "PlaneModel":  # fmt: skip
        """Of the prefixes of `values`, each of at most `prefix_bits` above the `below` lowest bits, of which `counts`
        tells how often each is there, if that is known."""
        place = (values, rotate, below, prefix_bits, per_segment, threads)
        segments = -(-values.size // per_segment)
        ids, sums = np.zeros(segments, np.uint8), counts
        if segments >= _LEAST_CLUSTERED:  # then the counts were not known
            step = -(-segments // _CLUSTERED)
            rows = _counts(*place, step)
            lengths = _cluster(rows, step)
            if lengths is not None:
                ids, sums = _grouped(*place, lengths)
            elif step == 1:
                sums = rows.sum(0, dtype=np.int64)[None]
        if sums is None:
            sums = _counts(*place)
        while np.count_nonzero(total := sums.any(0)) > rans.MAX_SYMBOLS:
            sums, prefix_bits = sums[:, ::2] + sums[:, 1::2], prefix_bits - 1
        used, chosen = np.flatnonzero(total), np.flatnonzero(sums.any(1))
        if used.size == 1:
            return cls(0, prefix_bits, used, [], ids, struct.pack("<H", int(used[0])))
        if len(sums) > 1:
            ids = np.searchsorted(chosen, ids).astype(np.uint8)
        precision = rans.MAX_PRECISION if values.size >= 1 << 15 else 11 if values.size >= 1 << 12 else 10
        tables = []
        for counts in sums[chosen][:, used]:
            frequencies = np.empty(used.size, np.int64)
            quantise(counts, precision, frequencies)
            tables.append(frequencies)
        return cls(precision, prefix_bits, used, tables, ids, tables_text(used, np.array(tables)))


def _grouped(
    values: Array, rotate: int, below: int, prefix_bits: int, per_segment: int, threads: int, lengths: Array
) -> tuple[Array, Array]:
    """The group of each segment whose code `lengths`, float32 [groups, 2^prefix_bits], code it shortest, uint8; and the
    prefixes of each group, int64 [groups, 2^prefix_bits]."""
    ids = np.empty(-(-values.size // per_segment), np.uint8)

    def work(first: int, last: int) -> Array:
        tables, counts = np.zeros((4, 1 << prefix_bits), np.uint32), np.empty(1 << prefix_bits, np.uint32)
        sums = np.zeros(lengths.shape, np.int64)
        choose_groups(values, rotate, below, first, last, per_segment, lengths, tables, counts, ids, sums)
        return sums

    sums: Array = np.sum(spread(work, ids.size, threads), axis=0)
    return ids, sums


def _cluster(rows: Array, step: int) -> Array | None:
    """Code lengths, float32 [groups, 2^prefix bits], of a few tables that code segments shortest, each segment by one
    of them (k-means on code lengths); None where one table does as well. rows: counts of every `step`th segment."""
    used = np.flatnonzero(rows.any(0))
    sample = rows[:, used].astype(np.float32)
    means = (sample @ np.arange(used.size, dtype=np.float32)) / sample.sum(1)
    lengths = np.zeros((MAX_TABLES, used.size), np.float32)
    groups = cluster(sample, np.argsort(means), 14.0 * used.size / step, lengths)
    if not groups:
        return None
    every = np.full((groups, rows.shape[1]), _UNKNOWN, np.float32)
    every[:, used] = lengths[:groups]
    return every


@lossy_kernel(fastmath=True)
def cluster(sample, order, table_bits, best):
    """The work of `_cluster`: how many groups, 0 for none, of the code lengths that fill `best`.

    order: of segments, by their mean symbol. table_bits: what a table costs, times the share that the sample is of all.
    """
    segments, symbols = sample.shape
    total = np.zeros(symbols, np.float32)
    for segment in range(segments):
        total += sample[segment]
    found, best_cost = 0, _code_length(total) + table_bits
    assigned, lengths = np.zeros(segments, np.int64), np.zeros((best.shape[0], symbols), np.float32)
    for size in (2, 4, 8):
        if segments < 2 * size:
            break
        for i in range(segments):
            assigned[order[i]] = i * size // segments
        for _ in range(4):
            _sum_groups(sample, assigned, lengths[:size])
            for group in range(size):
                row = lengths[group]
                for symbol in range(symbols):
                    row[symbol] += np.float32(0.02 / segments) * total[symbol] + np.float32(1e-9)
                whole = np.log2(row.sum())
                for symbol in range(symbols):
                    row[symbol] = whole - np.log2(row[symbol])
            for segment in range(segments):
                least = np.float32(1e30)
                for group in range(size):
                    cost = np.float32(0.0)
                    for symbol in range(symbols):
                        cost += sample[segment, symbol] * lengths[group, symbol]
                    if cost < least:
                        least, assigned[segment] = cost, group
        sums = np.zeros((size, symbols), np.float32)
        _sum_groups(sample, assigned, sums)
        cost = 8.0 * segments
        for group in range(size):
            if sums[group].sum() > 0:
                cost += _code_length(sums[group]) + table_bits
        if cost >= best_cost * 0.9998:
            break
        found, best_cost = size, cost
        best[:size] = lengths[:size]
    return found


@lossy_kernel(fastmath=True)
def _sum_groups(sample, assigned, sums):
    sums[:] = 0
    for segment in range(sample.shape[0]):
        sums[assigned[segment]] += sample[segment]


@lossy_kernel(fastmath=True)
def _code_length(counts):
    """Bits of an ideal code of these counts."""
    total, bits = np.float64(counts.sum()), np.float64(0.0)
    for count in counts:
        if count > 0:
            bits -= count * np.log2(count / total)
    return bits


def spread(work: Callable[[int, int], T], segments: int, threads: int) -> list[T]:
    """`work(first, last)` over all segments, some of them at a time on `threads` threads; results in order."""
    if threads <= 1 or segments < 4:
        return [work(0, segments)]
    edges = np.linspace(0, segments, min(2 * threads, segments) + 1).astype(int).tolist()
    return list(_pool(threads).map(work, edges[:-1], edges[1:]))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="squeeze-floats")
