"""Match models: they find the last place where the latest bytes occurred, and expect the byte that followed there.

Each of several matches has its own minimum length. After a wrong expectation a match keeps its place with length 0 and
a record of recent misses, until a longer verified candidate appears. The adaptive map learns what such a match is
worth. This is the recovery of lpaq9 and paq8px.
"""

import numpy as np

from squeeze.numerics.bitmodels import layout
from squeeze.numerics.bitmodels.histories import learn
from squeeze.numerics.integer_vectors import word_at
from squeeze.numerics.jit import inline, prefetch
from squeeze.numerics.logistic import STRETCH

# One match: where it points (0: nowhere), matching bytes, a bit for each recent miss, the expected byte
# with a leading one (0: none), and the entry of its adaptive map that is asked for the present bit (-1: none).
STATE = layout.fields("pointer length misses expected entry")
FOUND = 16  # what `gather` may return: classes of length, each with an expected bit
ENTRIES = 512  # adaptive map entries of one match: 32 lengths x 16 histories of misses
START_ENTRY = (3 << 20) << 10  # three of four expectations come true
_VERIFIED = 400  # bytes compared behind a candidate
_MULTIPLY = np.uint64(0x9E3779B97F4A7C15)


def fresh_table(matches: int, size: int) -> np.ndarray:
    """Return int32 [matches, rows], the last position of each hash in a block of `size` bytes."""
    return np.zeros((matches, 1 << min(max(size.bit_length(), 8), 22)), np.int32)


def fresh_maps(matches: int) -> np.ndarray:
    """Return uint32 [matches * ENTRIES], adaptive maps of the probability that an expectation is right."""
    return np.full(matches * ENTRIES, START_ENTRY, np.uint32)


@inline
def expect(state, data):
    """Record the byte that every match expects next."""
    for k in range(state.shape[0]):
        state[k].expected = np.int64(data[state[k].pointer]) | 256 if state[k].pointer > 0 else 0


@inline
def _length_class(length):
    if length < 16:
        return length
    if length < 32:
        return 16 + ((length - 16) >> 2)
    if length < 512:
        return 20 + min((length - 32) >> 5, 10)
    return 31


@inline
def gather(state, maps, partial, shift, inputs, first):
    """Write two inputs per match to inputs[first:].

    Args:
        state: The matches.
        maps: Their adaptive maps.
        partial: The bits of the byte so far after a leading one.
        shift: The place of the next bit, 7 for the first one.
        inputs: Q12 logits.
        first: Where the inputs go.

    Returns:
        Twice the class of the first live match plus its expected bit, or 0.
    """
    found = 0
    for k in range(state.shape[0]):
        expected = state[k].expected
        entry, logit, tilt = -1, 0, 0
        if (expected >> (shift + 1)) == partial:
            bit = (expected >> shift) & 1
            length = _length_class(state[k].length)
            entry = k * ENTRIES + length * 16 + (state[k].misses & 15)
            probability = np.int64(maps[entry] >> np.uint32(20))
            logit = np.int64(STRETCH[probability])
            tilt = (probability - 2048) * 2
            if bit == 0:
                logit, tilt = -logit, -tilt
            if found == 0:
                found = 2 * (1 + min(length >> 2, 6)) + bit
        state[k].entry = entry
        inputs[first + 2 * k] = logit
        inputs[first + 2 * k + 1] = tilt
    return found


@inline
def follow_bit(state, k, bit, shift):
    """Return whether match `k`, which expected a bit, was right. If not, it starts again."""
    hit = np.int64(((state[k].expected >> shift) & 1) == bit)
    if hit == 0:
        state[k].length = 0
        state[k].misses = (state[k].misses << 1) | 1
    return hit


@inline
def update_bit(state, maps, bit, shift, limit):
    """Update the adaptive maps and the matches after a bit."""
    for k in range(state.shape[0]):
        if state[k].entry >= 0:
            learn(maps, state[k].entry, follow_bit(state, k, bit, shift), limit)


@inline
def reach(least):
    """Return the latest bytes that are read for the row of a table: `least` in words of eight."""
    return (least + 7) & ~7


@inline
def row_of(table, data, position, least):
    """Return the row for the latest `least` bytes in the table of a match; `reach(least)` bytes must be there."""
    h = np.uint64(0)
    for i in range(0, least, 8):
        word = word_at(data, position - i - 7)
        if least - i < 8:
            word >>= np.uint64(8 * (8 + i - least))
        h += word
        h = (h ^ (h >> np.uint64(32))) * _MULTIPLY
    return np.int64(h >> np.uint64(40)) & (table.shape[1] - 1)


@inline
def fetch(least_lengths, table, data, position):
    """Prefetch what `update_byte` will look up."""
    for k in range(least_lengths.size):
        if position + 1 >= reach(least_lengths[k]):
            prefetch(table, k * table.shape[1] + row_of(table, data, position, least_lengths[k]))


@inline
def update_byte(state, least_lengths, table, data, position):
    """Advance every match past data[position] and look for better ones."""
    for k in range(state.shape[0]):
        if state[k].pointer > 0:
            if data[state[k].pointer] == data[position]:
                state[k].length += 1
                if state[k].length >= 16:
                    state[k].misses = 0
            state[k].pointer += 1
            if (state[k].misses & 255) == 255 or state[k].pointer >= data.size:
                state[k].pointer = 0
                state[k].length = 0
                state[k].misses = 0
        least = least_lengths[k]
        if position + 1 >= reach(least):
            row = row_of(table, data, position, least)
            candidate = np.int64(table[k, row])
            if state[k].length < least and candidate > 0:
                length = 0
                while (
                    length < _VERIFIED
                    and length < candidate
                    and data[candidate - 1 - length] == data[position - length]
                ):
                    length += 1
                if length >= least:
                    state[k].pointer = candidate
                    state[k].length = length
                    state[k].misses = 0
            table[k, row] = position + 1
