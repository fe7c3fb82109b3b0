"""The frequency tables of the float encoder, and which segments share one.

Nothing here affects a decoder: floating point is free to differ between machines.
"""

import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import numpy as np

from squeeze.codecs.tensors import rans
from squeeze.codecs.tensors.float_layout import space
from squeeze.codecs.tensors.float_payload import MAX_TABLES, Array
from squeeze.codecs.tensors.planes import choose_groups, count_prefixes
from squeeze.codecs.tensors.tables import quantise, tables_text
from squeeze.numerics.jit import kernel, lossy_kernel

T = TypeVar("T")
_LEAST_CLUSTERED = 8  # segments
_CLUSTERED = 96  # segments that choose the frequency tables
_UNKNOWN = 20.0  # bits of a prefix that is not in the sample


def _counts(
    values: Array, rotate: int, below: int, prefix_bits: int, per_segment: int, threads: int, step: int = 0
) -> Array:
    """How often each prefix is there, [1, 2^prefix_bits], or in every `step`th segment, [segments / step, ...]."""
    segments = -(-values.size // per_segment)
    rows = np.zeros((-(-segments // step), 1 << prefix_bits), np.uint32) if step else None

    def work(first: int, last: int) -> Array:
        tables = space().tables
        found = np.zeros((1, 1 << prefix_bits), np.int64) if rows is None else rows
        first = -(-first // (step or 1)) * (step or 1)
        count_prefixes(values, rotate, below, first, last, per_segment, step or 1, tables, found)
        return found

    found = spread(work, segments, threads)
    return found[0] if rows is not None or len(found) == 1 else np.sum(found, axis=0)


@dataclass(frozen=True)
class PlaneModel:
    """The frequency tables of a plane, and which segment uses which."""

    precision: int  # 0 where all prefixes are one
    prefix_bits: int
    prefixes: Array  # int64 [symbols]
    frequencies: Array  # int64 [tables, symbols]
    ids: Array  # uint8 [segments]
    text: bytes  # as it stands in the payload

    @classmethod
    def build(
        cls, values: Array, rotate: int, below: int, prefix_bits: int, per_segment: int, threads: int,
        counts: Array | None,
    ) -> "PlaneModel":  # fmt: skip
        """Of the prefixes of `values`, each of at most `prefix_bits` above the `below` lowest bits, of which `counts`
        tells how often each is there, if that is known."""
        place, no_tables = (values, rotate, below, prefix_bits, per_segment, threads), np.zeros((0, 1), np.int64)
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
        prefixes = np.empty(rans.MAX_SYMBOLS, np.int64)
        fewer, used = used_prefixes(sums, prefixes)
        prefix_bits, prefixes = prefix_bits - int(fewer), prefixes[:used]
        if used == 1:
            return cls(0, prefix_bits, prefixes, no_tables, ids, struct.pack("<H", int(prefixes[0])))
        if len(sums) > 1:
            chosen = np.flatnonzero(sums.any(1))
            ids, sums = np.searchsorted(chosen, ids).astype(np.uint8), sums[chosen]
        precision = rans.MAX_PRECISION if values.size >= 1 << 15 else 11 if values.size >= 1 << 12 else 10
        frequencies = np.empty((len(sums), used), np.int64)
        for counts, row in zip(sums, frequencies, strict=True):
            quantise(counts[prefixes], precision, row)
        return cls(precision, prefix_bits, prefixes, frequencies, ids, tables_text(prefixes, frequencies))


@kernel
def used_prefixes(sums, prefixes):
    """Fill `prefixes`, int64 [256], with those that are in any row of `sums`, of as many of their leading bits as leave
    no more of them; the rows then hold the counts of these. Returns how many bits fewer, and how many prefixes."""
    size, fewer = sums.shape[1], 0
    while True:
        used = 0
        for k in range(size):
            total = 0
            for row in range(sums.shape[0]):
                total += sums[row, k]
            if total:
                if used < prefixes.size:
                    prefixes[used] = k
                used += 1
        if used <= prefixes.size:
            return fewer, used
        size >>= 1
        fewer += 1
        for row in range(sums.shape[0]):
            for k in range(size):
                sums[row, k] = sums[row, 2 * k] + sums[row, 2 * k + 1]


def _grouped(
    values: Array, rotate: int, below: int, prefix_bits: int, per_segment: int, threads: int, lengths: Array
) -> tuple[Array, Array]:
    """The group of each segment whose code `lengths`, float32 [groups, 2^prefix_bits], code it shortest, uint8; and the
    prefixes of each group, int64 [groups, 2^prefix_bits]."""
    ids = np.empty(-(-values.size // per_segment), np.uint8)

    def work(first: int, last: int) -> Array:
        tables, counts = space().tables, np.empty(1 << prefix_bits, np.uint32)
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
