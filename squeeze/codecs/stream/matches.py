"""Finding repeats in a stream: a rolling hash samples windows of 32 bytes, and a table has where each was last seen.

A window is sampled by its own hash, so a repeat has the same samples wherever it is. Matches are extended in both
directions. Sources are resolved to where their bytes were first coded: a copy never needs another copy.
"""

import numpy as np

from squeeze.numerics.jit import inline, kernel, prefetch

__all__ = ["COLUMNS", "GEAR", "SCRATCH", "WIDTH", "find", "is_same", "resolve"]

WIDTH = 32  # bytes of a hashed window
COLUMNS = 3  # of a copy: its place, length and source, all offsets in the stream
SCRATCH = 1 << 12  # bytes whose samples are looked up together
_BITS = np.uint64(24)  # bits of a hash that are kept in the table
_CHECK = np.uint64((1 << 24) - 1)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SAMPLED = np.uint64(60)  # a window is sampled if the bits of its hash from here on are 0: one in 16
_LEAST_PIECE = 32  # bytes of a shorter piece of a copy cost as much as its source


def _gear() -> np.ndarray:
    """Return a random number for each byte; windows of a single repeated byte are never sampled."""
    numbers, state = [], 1
    for _ in range(256):
        while True:
            state = (state * 0xD1342543DE82EF95 + 0x2545F4914F6CDD1D) % 2**64
            number = state ^ state >> 32
            if number * ((4**WIDTH - 1) // 3) % 2**64 >> int(_SAMPLED):
                break
        numbers.append(number)
    return np.array(numbers, np.uint64)


GEAR = _gear()


@kernel
def find(data, span, table, gear, state, rows, places, hashes):
    """Find copies in a part of a buffer, and add its samples to the table; return the number of copies.

    Args:
        data: uint8 buffer.
        span: int64 (origin, oldest, begin, end, least, near, least_near, chunk): the offset in the stream of the
            buffer's first byte; indexes of the oldest byte that may be a source, and of the part; the least length of a
            copy, a distance, and the least length of a copy from less far in the chunk that begins at the last index.
        table: uint64 [2^n]: the end of a window as an offset in the stream, and bits of its hash; 0 if empty.
        gear: GEAR.
        state: int64 (anchor, shift): index after the last copy, and its distance; both are updated.
        rows: int64 [n, COLUMNS]: gets the copies.
        places, hashes: int64 and uint64 [SCRATCH], for samples.
    """
    origin, oldest, end, count = span[0], span[1], span[3], 0
    mask = np.uint64(table.size - 1)
    place = span[2]
    while place < end:
        stop = min(place + SCRATCH, end)
        found = _sample(data, gear, oldest, place, stop, places, hashes)
        for k in range(found):
            prefetch(table, np.int64((hashes[k] >> _BITS) & mask))
        for k in range(found):
            after, mixed = places[k], hashes[k]
            if after <= state[0]:
                continue
            slot = np.int64((mixed >> _BITS) & mask)
            entry = table[slot]
            source, back, length = after - state[1], 0, 0
            if state[1] > 0:  # where the last copy would go on
                back, length = _extended(data, state[0], after, span, source)
            if length == 0 and (entry ^ mixed) & _CHECK == 0:
                source = np.int64(entry >> _BITS) - origin
                back, length = _extended(data, state[0], after, span, source)
            if length == 0 or count == rows.shape[0]:
                table[slot] = np.uint64(after + origin) << _BITS | mixed & _CHECK
                continue
            rows[count, 0], rows[count, 1], rows[count, 2] = after - back + origin, length, source - back + origin
            count += 1
            state[0], state[1] = after - back + length, after - source
        place = stop
        if state[0] > stop:
            place = min(max(stop, state[0] - WIDTH), end)
    return count


@inline
def _sample(data, gear, oldest, place, stop, places, hashes):
    """List the ends of sampled windows, and their hashes; return their number."""
    hashed, found = np.uint64(0), 0
    for i in range(max(place - WIDTH, oldest), place):
        hashed = (hashed << np.uint64(2)) + gear[data[i]]
    for i in range(place, stop):
        hashed = (hashed << np.uint64(2)) + gear[data[i]]
        if hashed >> _SAMPLED == 0 and i + 1 - WIDTH >= oldest:
            mixed = hashed * _MULTIPLIER
            places[found], hashes[found] = i + 1, mixed ^ mixed >> np.uint64(32)
            found += 1
    return found


@inline
def _extended(data, anchor, after, span, source):
    """Return how far equal bytes reach before `after` and `source`, and in all; 0 if they are too few.

    The source of a copy ends before it.
    """
    oldest = span[1]
    if source <= oldest or source >= after:
        return 0, 0
    back, most = 0, min(after - max(anchor, source), source - oldest)
    while back < most and data[after - back - 1] == data[source - back - 1]:
        back += 1
    most, ahead = min(span[3] - after, after - back - source), 0
    while ahead < most and data[after + ahead] == data[source + ahead]:
        ahead += 1
    length = back + ahead
    is_near = after - source < span[5] and source - back >= span[7]
    return (back, length) if length >= (span[6] if is_near else span[4]) else (0, 0)


@kernel
def resolve(rows, count, known, first, last, window, result):
    """Resolve copies of copies to copies of what was first coded, and leave out pieces that are short or too far.

    Args:
        rows: int64 [>= count, COLUMNS]: copies in order.
        count: their number.
        known: int64 [n, COLUMNS]: resolved copies of the stream before, in rows `first` to `last`; gets the result.
        first, last: rows of `known`.
        window: most bytes between a copy and its source.
        result: int64 (last, removed): the new end of the rows in `known`, and the bytes of new copies.

    Returns:
        the number of rows that were resolved; fewer than `count` if `known` is full.
    """
    removed, begin = 0, last
    for row in range(count):
        place, left, source = rows[row, 0], rows[row, 1], rows[row, 2]
        low, high = first, last
        while low < high:  # the first copy that ends after the source begins
            middle = (low + high) // 2
            if known[middle, 0] + known[middle, 1] > source:
                high = middle
            else:
                low = middle + 1
        while left > 0:
            if last == known.shape[0]:
                result[0], result[1] = last, removed
                return row
            at, size = source, left
            if low < last and source >= known[low, 0]:
                at = known[low, 2] + source - known[low, 0]
                size = min(left, known[low, 0] + known[low, 1] - source)
                low += 1
            elif low < last:
                size = min(left, known[low, 0] - source)
            joins = last > begin and known[last - 1, 0] + known[last - 1, 1] == place
            if joins and known[last - 1, 2] + known[last - 1, 1] == at:
                known[last - 1, 1] += size
                removed += size
            elif size >= _LEAST_PIECE and at >= place - window:
                known[last, 0], known[last, 1], known[last, 2] = place, size, at
                last += 1
                removed += size
            place, source, left = place + size, source + size, left - size
    result[0], result[1] = last, removed
    return count


@kernel
def is_same(data, origin, rows, begin, end):
    """Return whether the copies in some rows equal their sources, in a buffer whose first byte is at `origin`."""
    for row in range(begin, end):
        place, source = rows[row, 0] - origin, rows[row, 2] - origin
        for i in range(rows[row, 1]):
            if data[place + i] != data[source + i]:
                return False
    return True
