"""Compiled steps of differences: the changed words of a tensor as gaps and small steps, and the checksum of a state.

A tensor is an array of 64-bit words, each with `64 / bits` values. Blocks have BLOCK words. Within a block each changed
value has a gap and a step. The gap is the number of unchanged values before it. The step is its bits minus the old
ones, folded so that small steps of either sign become small numbers. Both are bytes; 255 announces a longer number.

The checksum of a state is the sum, modulo 2^64, of a mix of each word with its place. So a change of some words changes
it by the difference of their mixes, and no word that stays is read again.
"""

import numpy as np

from squeeze.numerics.codegen import intrinsic, ir, types
from squeeze.numerics.jit import inline, kernel

BLOCK = 8192  # words
LONG = 255  # announces a number of more than a byte
GAP = 3  # most bytes of a gap

_FIRST, _SECOND, _THIRD = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # of splitmix64


@intrinsic
def _lowest(typingctx, word):
    """Return the place of the lowest set bit of a uint64, int64; there must be one."""

    def codegen(context, builder, signature, arguments):
        kind = ir.IntType(64)
        call = builder.module.declare_intrinsic("llvm.cttz.i64", (), ir.FunctionType(kind, [kind, ir.IntType(1)]))
        return builder.call(call, [arguments[0], ir.IntType(1)(1)])

    return types.int64(types.uint64), codegen


@inline
def _mixed(place, word):
    mix = (word ^ np.uint64(place) * np.uint64(_FIRST)) * np.uint64(_SECOND)
    mix ^= mix >> np.uint64(31)
    mix *= np.uint64(_THIRD)
    return mix ^ mix >> np.uint64(29)


@kernel
def checksum(words, base):
    """Return the sum of the mixes of words, uint64 [N]. base: the place of the first one, from 1 on."""
    total = np.uint64(0)
    for i in range(words.size):
        total += _mixed(base + i, words[i])
    return total


@inline
def _differing(words, olds, first, last, found):
    """Write the places of words from `first` to `last` that differ to `found`, and return their number."""
    count = 0
    for i in range(first, last):
        found[count] = i
        count += words[i] != olds[i]
    return count


@inline
def _put_long(gap, step, bits, gaps, steps, gap_end, step_end):
    """Write a gap and a step of which at least one is long; return where both end."""
    if gap < LONG:
        gaps[gap_end] = gap
        gap_end += 1
    else:
        gaps[gap_end], gaps[gap_end + 1], gaps[gap_end + 2] = LONG, gap & 255, gap >> 8
        gap_end += 3
    if step < np.uint64(LONG):
        steps[step_end] = step
        return gap_end, step_end + 1
    steps[step_end] = LONG
    for k in range(bits // 8):
        steps[step_end + 1 + k] = step >> np.uint64(8 * k) & np.uint64(255)
    return gap_end, step_end + 1 + bits // 8


@kernel
def scan(words, olds, bits, base, table, gaps, steps, found):
    """Find the values that differ, copy their words to `olds`, and return how the checksum changes.

    Args:
        words: uint64 [N], the new values.
        olds: uint64 [N], the old values.
        bits: of a value.
        base: the place of the first word.
        table: int64 [blocks, 3], filled with the changes, bytes of gaps and bytes of steps of each block.
        gaps: uint8, filled. There is room for GAP bytes a value, and one.
        steps: uint8, filled. There is room for a byte more than a value has, and one.
        found: working space, int64 [BLOCK + 1].
    """
    log, top = _lowest(np.uint64(bits)), np.uint64(bits - 1)
    mask = ~np.uint64(0) >> np.uint64(64 - bits)
    total, gap_end, step_end = np.uint64(0), 0, 0
    for block in range(table.shape[0]):
        first, last = block * BLOCK, min((block + 1) * BLOCK, words.size)
        count, gap_begin, step_begin, before = 0, gap_end, step_end, np.int64(-1)
        for k in range(_differing(words, olds, first, last, found)):
            i = found[k]
            new, old = words[i], olds[i]
            total += _mixed(base + i, new) - _mixed(base + i, old)
            olds[i], differing = new, new ^ old
            while differing:
                lane = _lowest(differing) >> log
                shift, place = np.uint64(lane << log), (i - first << 6 - log) + lane
                differing &= ~(mask << shift)
                step = ((new >> shift) - (old >> shift)) & mask
                step = (step << np.uint64(1) ^ (np.uint64(0) - (step >> top))) & mask
                gap, before = place - before - 1, place
                count += 1
                if (gap >= LONG) | (step >= np.uint64(LONG)):
                    gap_end, step_end = _put_long(gap, step, bits, gaps, steps, gap_end, step_end)
                else:
                    gaps[gap_end], steps[step_end] = gap, step
                    gap_end, step_end = gap_end + 1, step_end + 1
        table[block, 0], table[block, 1], table[block, 2] = count, gap_end - gap_begin, step_end - step_begin
    return total


@kernel
def expand(words, bits, base, count, table, gaps, steps, places, news, used):
    """Undo `scan` without changing `words`: find the changed words, and return how the checksum changes.

    Args:
        words: uint64 [N], the old values.
        bits: of a value.
        base: the place of the first word.
        count: values of the tensor among these words.
        table: int64 [blocks, 3], as `scan` fills it.
        gaps: uint8, those of all blocks.
        steps: uint8, those of all blocks.
        places: int64, filled with the places of changed words; there is room for every change.
        news: uint64, filled with these words.
        used: int64 [1], filled with the number of changed words, or -1 if the numbers contradict each other.
    """
    log, per = _lowest(np.uint64(bits)), np.int64(64 // bits)
    mask = ~np.uint64(0) >> np.uint64(64 - bits)
    total, gap_place, step_place, found = np.uint64(0), 0, 0, 0
    used[0] = -1
    for block in range(table.shape[0]):
        gap_end, step_end = gap_place + table[block, 1], step_place + table[block, 2]
        if gap_end > gaps.size or step_end > steps.size:
            return total
        first, most = block * BLOCK, min(BLOCK * per, count - block * BLOCK * per)
        place, word_place, word = np.int64(-1), np.int64(-1), np.uint64(0)
        for _ in range(table[block, 0]):
            if gap_place >= gap_end or step_place >= step_end:
                return total
            gap = np.int64(gaps[gap_place])
            gap_place += 1
            if gap == LONG:
                if gap_place + 2 > gap_end:
                    return total
                gap = np.int64(gaps[gap_place]) | np.int64(gaps[gap_place + 1]) << 8
                gap_place += 2
            place += gap + 1
            if place >= most:
                return total
            step = np.uint64(steps[step_place])
            step_place += 1
            if step == np.uint64(LONG):
                if step_place + bits // 8 > step_end:
                    return total
                step = np.uint64(0)
                for k in range(bits // 8):
                    step |= np.uint64(steps[step_place]) << np.uint64(8 * k)
                    step_place += 1
            step = (step >> np.uint64(1)) ^ (np.uint64(0) - (step & np.uint64(1)))
            now = first + (place >> 6 - log)
            if now != word_place:
                if word_place >= 0:
                    total += _mixed(base + word_place, word) - _mixed(base + word_place, words[word_place])
                    places[found], news[found] = word_place, word
                    found += 1
                word_place, word = now, words[now]
            shift = np.uint64((place & per - 1) << log)
            value = ((word >> shift) + step) & mask
            word = (word & ~(mask << shift)) | value << shift
        if word_place >= 0:
            total += _mixed(base + word_place, word) - _mixed(base + word_place, words[word_place])
            places[found], news[found] = word_place, word
            found += 1
        if gap_place != gap_end or step_place != step_end:
            return total
    used[0] = found
    return total


@kernel
def put(words, places, news):
    """Write the changed words, uint64, at their places."""
    for i in range(places.size):
        words[places[i]] = news[i]
