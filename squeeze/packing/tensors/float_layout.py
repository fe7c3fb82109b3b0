"""How a tensor is cut into planes, and which bits of each are coded: what codes a sample of it shortest.

Nothing here affects a decoder: floating point is free to differ between machines.
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
_AT_ONCE, _FEWER = np.uint64(64), np.uint64(16)  # places of tables that are looked at together; they divide 2^8
_own = threading.local()
LOGS = np.arange(1 << 12) * np.log2(np.maximum(np.arange(1 << 12), 1))


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
    if count < SAMPLE_RUNS * SAMPLE_RUN:
        return bytes_of(content).view(kind)
    step = (count - SAMPLE_RUN) // (SAMPLE_RUNS - 1)
    sample: Array = np.empty((SAMPLE_RUNS, SAMPLE_RUN), kind)
    for at, run in enumerate(sample):
        content.fill(at * step * width, run.view(np.uint8))
    return sample.reshape(-1)


def choose(sample: Array, count: int, bits: int, rotated: bool, lanes: int, rows: int) -> Choice:
    """Measures a sample of `count` values."""
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
    sample, rotate, bits, layouts, longest, count, fixed, logs, tables, sampled, kinds, room, measured, prefixes, total
):
    """The layout that codes `count` values like `sample` shortest, in `total` bits, about.

    prefixes: int64 [layouts, 8], filled with the prefix bits of each plane. layouts and longest: see `shapes`. fixed:
    bits that coding costs beside the code. logs: float64, n log2(n) of small n. Filled where planes begin, in 8 places:
    sampled uint32 [8, 2, 2^13], the longest prefixes that there are and how often, and kinds int64 [8], how many they
    are. Working space: tables as `count_prefixes` has them, room and measured [8] as `_measure` has them.
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
    """Fill `found` with the prefixes that are in `tables`, below `size`, and how often each is; how many. The tables
    are zeroed."""
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
    """Whether `count` places of all tables are 0: words of 32 bits all the way, which vectors hold."""
    first, second, third, fourth, some = tables[0], tables[1], tables[2], tables[3], np.uint32(0)
    for k in range(count):
        at = begin + k
        some = np.uint32(some | np.uint32(np.uint32(first[at] | second[at]) | np.uint32(third[at] | fourth[at])))
    return some == np.uint32(0)


@kernel
def fold(sampled, used, shift, row):
    """Add the first `used` of prefixes and their counts, uint32 [2, 2^13], to `row`, int64, by all but their `shift`
    lowest bits."""
    for k in range(np.uint64(used)):
        row[sampled[0, k] >> np.uint32(shift)] += sampled[1, k]


@inline
def _measure(sampled, used, longest, values, most, logs, room, found):
    """Fill `found`, float64 [14, 2], for each number of prefix bits: how many prefixes there are, 0 for over `most`,
    and the bits of an ideal code of the `values` that are sampled.

    sampled: uint32 [2, 2^13], of which the first `used` are prefixes and their counts. logs: float64, n log2(n) of
    small n. room: as `sampled`, working space.
    """
    whole, source, prefix = np.float64(values) * np.log2(np.float64(values)), sampled, longest
    while prefix > 0:
        found[prefix, 0] = 0.0
        if used <= most or prefix <= 8:
            found[prefix, 0], found[prefix, 1] = used, whole - _sum_of_logs(source[1], used, logs)
        kept, last, total = np.uint64(0), np.uint32(source[0, 0] >> np.uint32(1)), np.uint32(0)
        for k in range(np.uint64(used)):  # neighbours become one
            place = np.uint32(source[0, k] >> np.uint32(1))
            is_same = place == last
            total = np.uint32(source[1, k] + (total if is_same else np.uint32(0)))
            kept += np.uint64(not is_same)
            room[0, kept], room[1, kept], last = place, total, place
        used, source = np.int64(kept) + 1, room
        prefix -= 1


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
        self.sampled, self.kinds = np.empty((8, 2, size), np.uint32), np.empty(8, np.int64)
        self.room = np.empty((2, size), np.uint32)
        self.measured = np.empty((8, _MAX_PREFIX + 1, 2))


def space() -> Space:
    if not hasattr(_own, "space"):
        _own.space = Space()
    own: Space = _own.space
    return own
