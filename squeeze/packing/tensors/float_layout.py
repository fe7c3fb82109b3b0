"""The choice of planes for a tensor, and of the bits of each that are coded: what codes a sample of it shortest.

Nothing here affects a decoder, so floating point may differ between machines.
"""

import threading
from dataclasses import dataclass
from functools import cache

import numpy as np

from squeeze.numerics.jit import inline, kernel, lossy_kernel
from squeeze.packing.tensors.content import Content, bytes_of
from squeeze.packing.tensors.float_payload import CHOICES, LAYOUTS, Array
from squeeze.packing.tensors.planes import tally

_MAX_PREFIX = 13  # bits
SAMPLE_RUNS, SAMPLE_RUN = 8, 1 << 12  # values of the sample
_AT_ONCE, _FEWER = np.uint64(64), np.uint64(16)  # places of tables that are checked together; divisors of 2^8
_own = threading.local()
LOGS = np.arange(1 << 12) * np.log2(np.maximum(np.arange(1 << 12), 1))


@dataclass(frozen=True)
class Choice:
    """The layout of a tensor that codes a sample of it shortest.

    prefixes: prefix bits of each plane. cost: about the bits of the whole tensor. counts: the frequency of each prefix
    for each plane, [1, 2^bits], or None if only a sample was counted.
    """

    layout: int
    prefixes: tuple[int, ...]
    cost: float
    counts: tuple[Array, ...] | None


def sample_of(content: Content, kind: type) -> Array:
    """Return a sample of a tensor's values of type `kind`; a small tensor is its own sample."""
    width = np.dtype(kind).itemsize
    count = content.size // width
    if count < SAMPLE_RUNS * SAMPLE_RUN:
        return bytes_of(content).view(kind)
    step = (count - SAMPLE_RUN) // (SAMPLE_RUNS - 1)
    sample: Array = np.empty((SAMPLE_RUNS, SAMPLE_RUN), kind)
    for at, run in enumerate(sample):
        content.fill(at * step * width, run.view(np.uint8))
    return sample.reshape(-1)


def choose(sample: Array, count: int, bits: int, rotated: bool, lanes: int, rows: int) -> Choice:
    """Choose the layout for a tensor.

    Args:
        sample: values of the tensor.
        count: values of the whole tensor.
        bits: bits of a value.
        rotated: whether values are rotated.
        lanes: lanes of a segment.
        rows: rows of a segment.
    """
    fixed = 32.0 * -(-count // (lanes * rows)) * (lanes + 1)  # bits of states and word counts
    widths, longest = shapes(bits, rotated)
    own, found, total = space(), np.empty(widths.shape, np.int64), np.empty(1)
    best = choose_layout(
        *(sample, bits if rotated else 0, bits, widths, longest, count, fixed, LOGS),
        *(own.tables, own.sampled, own.kinds, own.room, own.measured, found, total),
    )
    layout = CHOICES[bits, rotated][best]
    prefixes, counts = tuple(found[best, : len(LAYOUTS[layout])].tolist()), None
    if sample.size == count:
        tops = [sum(LAYOUTS[layout][number:]) for number in range(len(prefixes))]
        counts = tuple(np.zeros((1, 1 << prefix), np.int64) for prefix in prefixes)
        for top, prefix, row in zip(tops, prefixes, counts, strict=True):
            place = top // 8 - 1
            fold(own.sampled[place], own.kinds[place], longest[place] - prefix, row[0])
    return Choice(layout, prefixes, float(total[0]), counts)


@cache
def shapes(bits: int, rotated: bool) -> tuple[Array, Array]:
    """Return the possible layouts of a type.

    The first array has the widths of the planes of each layout, int64 [choices, 8], 0 after the last. The second has
    the longest prefix of planes whose highest bit is just below bit 8 (i + 1), int64 [8].
    """
    widths, longest = np.zeros((len(CHOICES[bits, rotated]), 8), np.int64), np.zeros(8, np.int64)
    for row, layout in zip(widths, CHOICES[bits, rotated], strict=True):
        row[: len(LAYOUTS[layout])] = LAYOUTS[layout]
        for number, width in enumerate(LAYOUTS[layout]):
            place = sum(LAYOUTS[layout][number:]) // 8 - 1
            longest[place] = max(longest[place], min(width, _MAX_PREFIX))
    return widths, longest


@kernel
def choose_layout(
    sample, rotate, bits, layouts, longest, count, fixed, logs, tables, sampled, kinds, room, measured, prefixes, total
):
    """Return the layout that codes `count` values like `sample` shortest, and its cost in `total`, in bits.

    Args:
        sample: values.
        rotate: their bits if they are rotated, else 0.
        bits: bits of a value.
        layouts: see `shapes`.
        longest: see `shapes`.
        count: values of the tensor.
        fixed: bits of a plane besides code and tables.
        logs: float64, n log2(n) of small n.
        tables: working space, see `count_prefixes`.
        sampled: filled for each of 8 places where a plane may begin: prefixes and their counts, uint32 [8, 2, 2^13].
        kinds: filled: how many prefixes there are at each place, int64 [8].
        room: working space, see `_measure`.
        measured: working space, see `_measure`, for 8 places.
        prefixes: filled with the prefix bits of each plane, int64 [layouts, 8].
        total: filled with the cost, float64 [1].
    """
    best, counted = 0, 0
    total[0] = 1e300
    scale = np.float64(count) / np.float64(sample.size)
    for layout in range(layouts.shape[0]):
        bits_of_all, top = 128.0, bits  # of the header
        for number in range(layouts.shape[1]):
            width = layouts[layout, number]
            if width == 0:
                break
            place = (top >> 3) - 1
            found = measured[place]
            if not (counted >> place) & 1:
                counted |= 1 << place
                end = np.uint64(sample.size)
                tally(sample, rotate, top - longest[place], np.uint64(0), end, 1 << longest[place], tables)
                kinds[place] = _take(tables, 1 << longest[place], sampled[place])
                most = 256 if count == sample.size else 200  # a sample lacks rare prefixes
                _measure(sampled[place], kinds[place], longest[place], sample.size, most, logs, room, found)
            least, shortest = 0, np.float64(count) * width
            for prefix in range(1, min(longest[place], width) + 1):
                used, cost = found[prefix, 0], np.float64(count) * (width - prefix)
                if used == 1:
                    cost += 16.0
                elif used:
                    cost += found[prefix, 1] * scale + fixed + 14.0 * used
                if used and cost < shortest:
                    least, shortest = prefix, cost
            prefixes[layout, number] = least
            bits_of_all += 128.0 + shortest  # with the plane's entry
            top -= width
        if bits_of_all < total[0]:
            best, total[0] = layout, bits_of_all
    return best


@inline
def _take(tables, size, found):
    """Move prefixes below `size` and their counts from `tables` to `found`, and return how many there are.

    The tables are zeroed.
    """
    used, zero = np.uint64(0), np.uint64(0)
    for begin in range(zero, np.uint64(size), _AT_ONCE):
        if _is_empty(tables, begin, _AT_ONCE):
            continue
        for part in range(begin, begin + _AT_ONCE, _FEWER):
            if _is_empty(tables, part, _FEWER):
                continue
            for k in range(part, part + _FEWER):
                total = np.uint32(tables[0, k] + tables[1, k] + tables[2, k] + tables[3, k])
                tables[0, k] = tables[1, k] = tables[2, k] = tables[3, k] = 0
                found[0, used], found[1, used] = np.uint32(k), total
                used += np.uint64(total != 0)
    return used


@inline
def _is_empty(tables, begin, count):
    """Return whether `count` places of all four tables are 0. Words of 32 bits throughout allow vectors."""
    first, second, third, fourth, some = tables[0], tables[1], tables[2], tables[3], np.uint32(0)
    for k in range(count):
        at = begin + k
        some = np.uint32(some | np.uint32(np.uint32(first[at] | second[at]) | np.uint32(third[at] | fourth[at])))
    return some == np.uint32(0)


@kernel
def fold(sampled, used, shift, row):
    """Add the first `used` prefixes' counts, uint32 [2, 2^13], to `row`, int64, without their `shift` lowest bits."""
    for k in range(np.uint64(used)):
        row[sampled[0, k] >> np.uint32(shift)] += sampled[1, k]


@inline
def _measure(sampled, used, longest, values, most, logs, room, found):
    """Fill `found`, float64 [14, 2], with the number of prefixes (0 if over `most`) and the bits of an ideal code.

    There is a row for each number of prefix bits. sampled: uint32 [2, 2^13], of which the first `used` columns are
    prefixes and their counts; they stand for `values` values. logs: float64, n log2(n) of small n. room: like
    `sampled`, working space.
    """
    whole, source, prefix = np.float64(values) * np.log2(np.float64(values)), sampled, longest
    while prefix > 0:
        found[prefix, 0] = 0.0
        if used <= most or prefix <= 8:
            found[prefix, 0], found[prefix, 1] = used, whole - _sum_of_logs(source[1], used, logs)
        kept, last, total = np.uint64(0), np.uint32(source[0, 0] >> np.uint32(1)), np.uint32(0)
        for k in range(np.uint64(used)):  # merge neighbours
            place = np.uint32(source[0, k] >> np.uint32(1))
            is_same = place == last
            total = np.uint32(source[1, k] + (total if is_same else np.uint32(0)))
            kept += np.uint64(not is_same)
            room[0, kept], room[1, kept], last = place, total, place
        used, source = np.int64(kept) + 1, room
        prefix -= 1


@lossy_kernel(fastmath=True)
def _sum_of_logs(counts, size, logs):
    """Return the sum of n log2(n) of the first `size` counts."""
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
        self.tables = np.zeros((4, size), np.uint32)  # zeroed again after each use
        self.sampled, self.kinds = np.empty((8, 2, size), np.uint32), np.empty(8, np.int64)
        self.room = np.empty((2, size), np.uint32)
        self.measured = np.empty((8, _MAX_PREFIX + 1, 2))


def space() -> Space:
    """Return the working space of this thread."""
    if not hasattr(_own, "space"):
        _own.space = Space()
    own: Space = _own.space
    return own
