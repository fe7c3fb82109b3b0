"""The frequency tables of the float encoder, and which segments share one.

Nothing here affects a decoder: floating point is free to differ between machines.
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
from squeeze.system.arena import kept
from squeeze.system.parallel import parallel_ranges

LEAST_CLUSTERED = 8  # segments
_CLUSTERED = 96  # segments that choose the frequency tables
_UNKNOWN = 20.0  # bits of a prefix that is not in the sample


@dataclass(frozen=True)
class Cut:
    """A plane of `width` bits taken out of values of `bits`, as rans.py says."""

    bits: int
    rotate: int
    drop: int
    width: int

    def of(self, values: Array) -> tuple[Array, int, int]:
        """Values of at most 32 bits that have the plane, and where it is in them: their `rotate` and `drop`."""
        if self.bits <= 32:
            return values, self.rotate, self.drop
        plane = kept("plane", values.size * self.width // 8).view(WORDS[self.width])
        cut_plane(values, self.rotate, self.drop, plane)
        return plane, 0, 0


def _counts(parts: Parts, cut: Cut, prefix_bits: int) -> Array:
    """How often each prefix is there, int64 [1, 2^prefix_bits]."""

    def work(values: Array, first: int, last: int) -> Array:
        return _count(values, cut, np.zeros(1 << prefix_bits, np.int64))

    return _sum(parts.map(work))[None]


def _samples(parts: Parts, cut: Cut, prefix_bits: int, step: int) -> Array:
    """The same of every `step`th segment, uint32 [segments / step, 2^prefix_bits]."""
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
    """Add the prefixes of some values to `row`, integers [2^prefix_bits]; the same."""
    plane, rotate, drop = cut.of(values)
    count_prefixes(plane, rotate, drop + cut.width - (row.size.bit_length() - 1), space().tables, row)
    return row


@dataclass(frozen=True)
class PlaneModel:
    """The frequency tables of a plane, and which segment uses which."""

    precision: int  # 0 where all prefixes are one
    prefix_bits: int
    prefixes: Array  # int64 [symbols]
    frequencies: Array  # int64 [tables, symbols]
    ids: Array  # uint8 [segments]
    text: bytes  # as it stands in the payload
    lowest: int  # values whose prefix is 0

    @classmethod
    def build(cls, parts: Parts, cut: Cut, prefix_bits: int, counts: Array | None) -> "PlaneModel":
        """Of the prefixes of a plane, each of at most `prefix_bits`; `counts` tells how often each is there, if that
        is known."""
        no_tables, segments = np.zeros((0, 1), np.int64), parts.segments
        ids, sums = np.zeros(segments, np.uint8), counts
        if segments >= LEAST_CLUSTERED:  # then the counts were not known
            step = -(-segments // _CLUSTERED)
            rows = _samples(parts, cut, prefix_bits, step)
            lengths = _cluster(rows, step)
            if lengths is not None:
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
    """Bits of the frequencies of a tensor of so many values."""
    return rans.MAX_PRECISION if count >= 1 << 15 else 11 if count >= 1 << 12 else 10


@kernel
def used_prefixes(sums, size, prefixes):
    """Fill `prefixes`, int64 [256], with those that are in the first `size` places of any row of `sums`, of as many of
    their leading bits as leave no more of them; the rows then hold the counts of these. Returns how many bits fewer,
    and how many prefixes."""
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
    """The group of each segment whose code `lengths`, float32 [groups, 2^prefix_bits], code it shortest, uint8; and the
    prefixes of each group, int64 [groups, 2^prefix_bits]."""
    ids = np.empty(parts.segments, np.uint8)
    size = lengths.shape[1]

    def work(values: Array, first: int, last: int) -> Array:
        plane, rotate, drop = cut.of(values)
        counts, sums = np.empty(size, np.uint32), np.zeros(lengths.shape, np.int64)
        below, tables, here = drop + cut.width - (size.bit_length() - 1), space().tables, ids[first:last]
        choose_groups(plane, rotate, below, 0, last - first, parts.per_segment, lengths, tables, counts, here, sums)
        return sums

    return ids, _sum(parts.map(work))


def _sum(arrays: Iterator[Array]) -> Array:
    return reduce(np.add, arrays)


def _cluster(rows: Array, step: int) -> Array | None:
    """Code lengths, float32 [groups, 2^prefix bits], of a few tables that code segments shortest, each segment by one
    of them (k-means on code lengths); None where one table does as well. rows: counts of every `step`th segment."""
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
