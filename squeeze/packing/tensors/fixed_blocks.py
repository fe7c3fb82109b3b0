"""Compiled loops over the blocks of fixed.py: each block codes its values by the prefixes that are frequent in it."""

import numpy as np

from squeeze.numerics.jit import inline, kernel
from squeeze.packing.tensors.fixed_groups import (
    GROUP,
    MOVES_BYTES,
    count,
    gather,
    join,
    join_prefixes,
    join_prefixes_run,
    join_run,
    scatter,
    split,
    split_prefixes,
)

LEVELS = 4  # of codes: an open value goes to the next one, and after the last has its prefix as a byte
KNOWN = 3  # prefixes of a level
_SAMPLE = 1 << 11  # values of a block that choose the prefixes
SLACK = 2 * GROUP  # additional bytes of an array of prefixes


@inline
def _groups(size):
    return (size + GROUP - 1) // GROUP


@inline
def _valid(size, group):
    """Return the mask of a group's members, of `size` values in all."""
    here = min(size - group * GROUP, GROUP)
    return (1 << here) - 1


@inline
def _padded(size):
    return (size + 3) // 4 * 4


@kernel
def block_sizes(count_of_values, per_block, record, counts, sizes):
    """Fill sizes, int64 [blocks], with the bytes of each block, -1 if its counts are invalid.

    counts: uint32 [blocks, LEVELS], the values that each level leaves open.
    """
    for block in range(counts.shape[0]):
        size = min(count_of_values - block * per_block, per_block)
        total = _groups(size) * record
        for level in range(LEVELS):
            left = np.int64(counts[block, level])
            if left > size:
                total = np.int64(-1)
                break
            total += _padded(left) if level == LEVELS - 1 else 8 * _groups(left)
            size = left
        sizes[block] = total


@inline
def _choose(values, begin, size, prefix_bits, names, histogram, order):
    """Fill names with the most frequent prefixes in a sample of values[begin : begin + size], in descending order."""
    below = 8 * values.itemsize - 1 - prefix_bits
    histogram[:] = 0
    every = np.uint64((1 << prefix_bits) - 1)
    stride = max(size // _SAMPLE, 1) * GROUP
    for start in range(0, size, stride):
        for i in range(start, min(start + GROUP, size)):
            histogram[(np.uint64(values[begin + i]) >> np.uint64(below)) & every] += 1
    found = 0
    for is_seen in (True, False):  # names must differ, so unseen prefixes fill up
        for prefix in range(1 << prefix_bits):
            if (histogram[prefix] > 0) == is_seen and (is_seen or found < names.size):
                order[found] = prefix
                found += 1
    for place in range(names.size):
        best = place
        for i in range(place + 1, found):
            if histogram[order[i]] > histogram[order[best]]:
                best = i
        order[place], order[best] = order[best], order[place]
        names[place] = order[place]


@kernel
def encode_blocks(
    values, first, last, per_block, record, prefix_bits, names, counts, out, bytes_, prefixes, tail, numbers
):
    """Write blocks `first` to `last` to `out` (uint8) and return the bytes written.

    Filled: names (uint8 [blocks, LEVELS * KNOWN]) and counts (uint32 [blocks, LEVELS]). Working space: bytes_ uint8
    [per_block + SLACK], prefixes uint8 [32], tail [32] of values' type, numbers int64 [2, 256].
    """
    place = 0
    for block in range(first, last):
        begin, left = block * per_block, 0
        size, known = min(values.size - begin, per_block), names[block]
        _choose(values, begin, size, prefix_bits, known, numbers[0], numbers[1])
        one, two, three = np.int64(known[0]), np.int64(known[1]), np.int64(known[2])
        for group in range(_groups(size)):
            valid, start = _valid(size, group), begin + group * GROUP
            if start + GROUP <= values.size:
                mask = split(values, start, one, two, three, out, place, prefixes) & valid
            else:
                tail[:] = 0
                for i in range(values.size - start):
                    tail[i] = values[start + i]
                mask = split(tail, 0, one, two, three, out, place, prefixes) & valid
            place += record
            if mask:
                gather(prefixes, mask, bytes_, left)
                left += count(mask)
        counts[block, 0] = left
        for level in range(1, LEVELS):
            size, left = left, 0
            for i in range(size, _groups(size) * GROUP):
                bytes_[i] = 0
            at = level * KNOWN
            one, two, three = np.int64(known[at]), np.int64(known[at + 1]), np.int64(known[at + 2])
            for group in range(_groups(size)):
                mask = split_prefixes(bytes_, group * GROUP, one, two, three, out, place, prefixes)
                mask &= _valid(size, group)
                place += 8
                if mask:
                    gather(prefixes, mask, bytes_, left)
                    left += count(mask)
            counts[block, level] = left
        for i in range(_padded(left)):
            out[place + i] = bytes_[i] if i < left else 0
        place += _padded(left)
    return place


@kernel
def decode_blocks(
    out, first, last, per_block, record, names, counts, coded, longs, start, one_level, other, prefixes, tail
):
    """Decode blocks `first` to `last`, which begin at `start` of `coded`, into `out`.

    coded is uint8, longs the same as uint32. Returns -1, or the first damaged block. Working space: one_level, other
    uint8 [per_block + SLACK]; prefixes and tail as in `encode_blocks`.
    """
    for block in range(first, last):
        begin, known = (block - first) * per_block, names[block]
        size = min(out.size - begin, per_block)
        end = start + _groups(size) * record
        for level in range(LEVELS - 1):
            end += 8 * _groups(np.int64(counts[block, level]))
        left = np.int64(counts[block, LEVELS - 1])
        for i in range(left):
            one_level[i] = coded[end + i]
        following = end + _padded(left)
        for level in range(LEVELS - 1, 0, -1):
            open_, size_of_level, used = left, np.int64(counts[block, level - 1]), 0
            end -= 8 * _groups(size_of_level)
            at = level * KNOWN
            one, two, three = np.int64(known[at]), np.int64(known[at + 1]), np.int64(known[at + 2])
            done = 0
            if MOVES_BYTES:
                done = size_of_level // GROUP
                used = join_prefixes_run(other, 0, done, one, two, three, coded, end, 8, one_level)
            for group in range(done, _groups(size_of_level)):
                place = end + 8 * group
                mask = np.int64(longs[place >> 2] & longs[(place >> 2) + 1]) & _valid(size_of_level, group)
                if mask:
                    scatter(one_level, used, mask, prefixes)
                    used += count(mask)
                join_prefixes(other, group * GROUP, one, two, three, coded, place, prefixes)
            if used != open_:
                return block
            one_level, other, left = other, one_level, size_of_level
        one, two, three = np.int64(known[0]), np.int64(known[1]), np.int64(known[2])
        used, done = 0, 0
        if MOVES_BYTES:
            done = size // GROUP
            used = join_run(out, begin, done, one, two, three, coded, start, record, one_level)
        for group in range(done, _groups(size)):
            place, target = start + record * group, begin + group * GROUP
            mask = np.int64(longs[place >> 2] & longs[(place >> 2) + 1]) & _valid(size, group)
            if mask:
                scatter(one_level, used, mask, prefixes)
                used += count(mask)
            if target + GROUP <= out.size:
                join(out, target, one, two, three, coded, place, prefixes)
            else:
                join(tail, 0, one, two, three, coded, place, prefixes)
                for i in range(out.size - target):
                    out[target + i] = tail[i]
        if used != left:
            return block
        start = following
    return np.int64(-1)
