"""The frequency tables of the float encoder, and the assignment of segments to them.

Nothing here affects a decoder, so floating point may differ between machines.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

import numpy as np

from squeeze.numerics.jit import kernel, lossy_kernel
from squeeze.packing.tensors import rans
from squeeze.packing.tensors.content import InMemory, Parts
from squeeze.packing.tensors.float_layout import space
from squeeze.packing.tensors.float_payload import MAX_TABLES, WORDS, Array
from squeeze.packing.tensors.planes import choose_groups, count_prefixes, count_segments, cut_plane
from squeeze.packing.tensors.tables import quantise, tables_text
from squeeze.system.arena import thread_buffer
from squeeze.system.parallel import parallel_ranges

LEAST_CLUSTERED = 8  # segments
_CLUSTERED = 96  # segments that are sampled for the frequency tables
_UNKNOWN = 20.0  # code length of a prefix that is not in the sample, bits


@dataclass(frozen=True)
class Cut:
    """The position of a plane of `width` bits in values of `bits` bits; rans.py explains `rotate` and `drop`."""

    bits: int
    rotate: int
    drop: int
    width: int

    def of(self, values: Array) -> tuple[Array, int, int]:
        """Return values of at most 32 bits that hold the plane, and its position in them (`rotate` and `drop`)."""
        if self.bits <= 32:
            return values, self.rotate, self.drop
        plane = thread_buffer("plane", values.size * self.width // 8).view(WORDS[self.width])
        cut_plane(values, self.rotate, self.drop, plane)
        return plane, 0, 0


def _counts(parts: Parts, cut: Cut, prefix_bits: int) -> Array:
    """Count each prefix over all values, int64 [1, 2^prefix_bits]."""

    def work(values: Array, first: int, last: int) -> Array:
        return _count(values, cut, np.zeros(1 << prefix_bits, np.int64))

    return _sum(parts.map(work))[None]


def _samples(parts: Parts, cut: Cut, prefix_bits: int, step: int) -> Array:
    """Count each prefix in every `step`th segment, uint32 [segments / step, 2^prefix_bits]."""
    rows = np.zeros((-(-parts.segments // step), 1 << prefix_bits), np.uint32)
    below = cut.drop + cut.width - prefix_bits

    def work(first: int, last: int) -> None:
        if isinstance(parts.content, InMemory) and cut.bits <= 32:
            values, size = parts.values(0, parts.segments), parts.per_segment
            count_segments(values, cut.rotate, below, size, step, first, last, space().tables, rows)
            return
        for row in range(first, last):
            _count(parts.values(row * step, row * step + 1), cut, rows[row])

    parallel_ranges(work, len(rows), parts.threads)
    return rows


def _count(values: Array, cut: Cut, row: Array) -> Array:
    """Add the prefixes of some values to `row`, integers [2^prefix_bits], and return it."""
    plane, rotate, drop = cut.of(values)
    count_prefixes(plane, rotate, drop + cut.width - (row.size.bit_length() - 1), space().tables, row)
    return row


@dataclass(frozen=True)
class PlaneModel:
    """The frequency tables of a plane, and which segment uses which.

    precision: bits of frequencies, 0 if all prefixes are equal. prefixes: int64 [symbols]. frequencies: int64 [tables,
    symbols]. ids: the table of each segment, uint8. text: the tables in the payload. lowest: values whose prefix is 0.
    """

    precision: int
    prefix_bits: int
    prefixes: Array
    frequencies: Array
    ids: Array
    text: bytes
    lowest: int

    @classmethod
    def build(cls, parts: Parts, cut: Cut, prefix_bits: int, counts: Array | None) -> "PlaneModel":
        """Build the model of a plane.

        Args:
            parts: the values.
            cut: the plane.
            prefix_bits: the most bits of a prefix.
            counts: how often each prefix occurs, if known.
        """
        no_tables, segments = np.zeros((0, 1), np.int64), parts.segments
        ids, sums = np.zeros(segments, np.uint8), counts
        if segments >= LEAST_CLUSTERED:  # counts are unknown then
            step = -(-segments // _CLUSTERED)
            rows = _samples(parts, cut, prefix_bits, step)
            lengths = _cluster(rows, step)
            if lengths is not None and step == 1:
                ids, sums = _grouped_rows(rows, lengths)
            elif lengths is not None:
                ids, sums = _grouped(parts, cut, lengths)
            elif step == 1:
                sums = rows.sum(0, dtype=np.int64)[None]
        if sums is None:
            sums = _counts(parts, cut, prefix_bits)
        prefixes = np.empty(rans.MAX_SYMBOLS, np.int64)
        fewer, used = used_prefixes(sums, sums.shape[1], prefixes)
        prefix_bits, prefixes, lowest = prefix_bits - int(fewer), prefixes[:used], int(sums[:, 0].sum())
        if used == 1:
            return cls(0, prefix_bits, prefixes, no_tables, ids, struct.pack("<H", int(prefixes[0])), lowest)
        if len(sums) > 1:
            chosen = np.flatnonzero(sums.any(1))
            ids, sums = np.searchsorted(chosen, ids).astype(np.uint8), sums[chosen]
        precision, worths = int(precision_of(parts.count)), np.empty(used)
        frequencies = np.empty((len(sums), used), np.int64)
        for counts, row in zip(sums, frequencies, strict=True):
            quantise(counts[prefixes], precision, row, worths)
        return cls(precision, prefix_bits, prefixes, frequencies, ids, tables_text(prefixes, frequencies), lowest)


@kernel
def precision_of(count):
    """Return the bits of frequencies for a tensor of `count` values."""
    return rans.MAX_PRECISION if count >= 1 << 15 else 11 if count >= 1 << 12 else 10


@kernel
def used_prefixes(sums, size, prefixes):
    """Fill `prefixes`, int64 [256], with the prefixes that occur in any of the first `size` places of rows of `sums`.

    If there are more than 256, prefixes are shortened until they fit, and the rows then hold their counts. Returns by
    how many bits, and the number of prefixes.
    """
    fewer = 0
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


def _grouped(parts: Parts, cut: Cut, lengths: Array) -> tuple[Array, Array]:
    """Assign each segment to the group whose code lengths code it shortest.

    lengths: float32 [groups, 2^prefix_bits]. Returns the groups, uint8 [segments], and the counts of prefixes in each,
    int64 [groups, 2^prefix_bits].
    """
    ids = np.empty(parts.segments, np.uint8)
    size = lengths.shape[1]

    def work(values: Array, first: int, last: int) -> Array:
        plane, rotate, drop = cut.of(values)
        counts, sums = np.empty(size, np.uint32), np.zeros(lengths.shape, np.int64)
        below, tables, here = drop + cut.width - (size.bit_length() - 1), space().tables, ids[first:last]
        choose_groups(plane, rotate, below, 0, last - first, parts.per_segment, lengths, tables, counts, here, sums)
        return sums

    return ids, _sum(parts.map(work))


def _grouped_rows(rows: Array, lengths: Array) -> tuple[Array, Array]:
    """Return the same as `_grouped` if the counts of all segments are known: `rows`, [segments, 2^prefix_bits]."""
    ids = (rows.astype(np.float32) @ lengths.T).argmin(1).astype(np.uint8)
    return ids, np.stack([rows[ids == group].sum(0, dtype=np.int64) for group in range(len(lengths))])


def _sum(arrays: Iterator[Array]) -> Array:
    return reduce(np.add, arrays)


def _cluster(rows: Array, step: int) -> Array | None:
    """Find a few tables that code segments shortest, one table a segment (k-means on code lengths).

    rows: counts of every `step`th segment. Returns code lengths, float32 [groups, 2^prefix bits], or None if one table
    is as good.
    """
    used = np.flatnonzero(rows.any(0))
    sample = rows[:, used].astype(np.float32)
    means = (sample @ np.arange(used.size, dtype=np.float32)) / sample.sum(1)
    lengths = np.zeros((MAX_TABLES, used.size), np.float32)
    groups = cluster(sample, np.argsort(means, kind="stable"), 14.0 * used.size / step, lengths)
    if not groups:
        return None
    every = np.full((groups, rows.shape[1]), _UNKNOWN, np.float32)
    every[:, used] = lengths[:groups]
    return every


@lossy_kernel(fastmath=True)
def cluster(sample, order, table_bits, best):
    """Cluster segments by code length; fill `best` with the code lengths of groups and return their number, or 0.

    Args:
        sample: counts of each segment's symbols, float32 [segments, symbols].
        order: the segments, sorted by their mean symbol.
        table_bits: bits of a table, times the share of segments that are in the sample.
        best: float32 [MAX_TABLES, symbols].
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
    """Return the bits of an ideal code for these counts."""
    total, bits = np.float64(counts.sum()), np.float64(0.0)
    for count in counts:
        if count > 0:
            bits -= count * np.log2(count / total)
    return bits
