"""The distinct words among the values of a tile, by a small table of hashes, or by a table of all words of 16 bits."""

import numpy as np

from squeeze.numerics.jit import inline, kernel

__all__ = ["SLOTS", "add", "clear", "distinct", "mark"]

SLOTS = 2048  # of a table, which has zeros for nothing


@inline
def _slot_of(word):
    return np.int64((np.uint64(word) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(53))


@inline
def add(values, begin, end, count, most, slots, words):
    """Add the words of values begin to end to a set; return their number, or -1 if there are more than `most`."""
    last = np.int64(-1)
    for i in range(begin, end):
        word = np.int64(values[i])
        if word == last:
            continue
        last = word
        slot = _slot_of(word)
        while slots[slot] and slots[slot] != word + 1:
            slot = (slot + 1) & (SLOTS - 1)
        if slots[slot] == 0:
            if count == most:
                return -1
            slots[slot] = word + 1
            words[count] = np.uint32(word)
            count += 1
    return count


@inline
def clear(slots, words, count):
    """Take words out of a table."""
    for k in range(count):
        slot = _slot_of(words[k])
        while slots[slot]:
            slots[slot] = 0
            slot = (slot + 1) & (SLOTS - 1)


@inline
def mark(values, begin, end, count, most, words, tile, marks):
    """Add words of 16 bits to those of a tile; return their number, or -1 if there are more than `most`."""
    for k in range(begin, end):
        word = np.uint64(np.uint16(values[k]))
        if marks[word] != tile:
            if count == most:
                return -1
            marks[word], words[count] = tile, np.uint32(word)
            count += 1
    return count


@kernel
def distinct(values, count, most, slots, words):
    """Add the words of all values to a set of `count`; return their number, or -1 if there are more than `most`."""
    return add(values, 0, values.size, count, most, slots, words)
