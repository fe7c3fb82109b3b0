"""Bit histories in hashed slots, and the adaptive maps that turn them into probabilities.

A bit history is one byte that stands for a sequence of bits: how many zeros and ones, which came last, and the whole
sequence while it is short. A slot of 16 bytes has a check of the context's hash and the 15 histories of a nibble, one
for each node of its binary tree. Four slots share a cache line. An adaptive map learns the probability of a one after
each history, so that its value is measured on the data itself. This is the indirect modelling of PAQ6 (Mahoney,
"Adaptive weighing of context models for lossless data compression", 2005).
"""

import numpy as np

from squeeze.numerics.bitmodels.contexts import mix_hash
from squeeze.numerics.bitmodels.layout import LINE
from squeeze.numerics.integer_vectors import find_check
from squeeze.numerics.jit import inline, prefetch

SLOT = 16  # bytes: four to a cache line

# The most bits of the commoner value that a history counts, by the count of the rarer one.
_COUNT_LIMITS = (60, 40, 12, 6, 5, 5)
_FULL_ORDER = 3  # histories of at most this many bits remember their order


def _forget(count: int) -> int:
    """Return what remains of a count when the opposite bit arrives: old evidence fades."""
    return min(count, 2) if count <= 3 else 3 if count <= 5 else 4 if count <= 9 else 5 if count <= 20 else 6


def _successor(history: tuple, bit: int) -> tuple:
    """Return (zeros, ones, latest bits) after one more bit."""
    zeros, ones, latest = history
    if 0 in (zeros, ones):
        latest = (0,) * zeros + (1,) * ones
    counts = [zeros, ones]
    counts[bit] += 1
    counts[1 - bit] = _forget(counts[1 - bit])
    while max(counts) > _COUNT_LIMITS[min(counts)]:
        counts[counts.index(max(counts))] -= 1
    if 0 in counts:
        return (*counts, ())
    bits = (*latest, bit)
    remembered = bits if len(bits) == sum(counts) <= _FULL_ORDER else bits[-1:]
    return (*counts, remembered)


def _history_tables() -> tuple[np.ndarray, np.ndarray]:
    """Return the successors uint8 [512], indexed by bit * 256 + history, and the initial adaptive maps uint32 [256]."""
    states = [(0, 0, ())]
    for history in states:
        states += [s for s in (_successor(history, 0), _successor(history, 1)) if s not in states]
    states.sort(key=lambda h: (h[0] + h[1], h))  # a larger number is more evidence
    number = {history: i for i, history in enumerate(states)}
    following = np.zeros(512, np.uint8)
    start = np.full(256, 1 << 31, np.uint32)
    for history, i in number.items():
        for bit in (0, 1):
            following[bit * 256 + i] = number[_successor(history, bit)]
        zeros, ones, _ = history
        start[i] = ((10 * ones + 4) * ((1 << 22) - 1) // (10 * (zeros + ones) + 8)) << 10
    return following, start


NEXT, START = _history_tables()
RATES = np.array([65536 * 10 // (10 * n + 16) for n in range(1024)], np.int32)  # 1 / (n + 1.6)


@inline
def line_of(h, line_mask):
    """Return where the cache line of a hash begins."""
    return np.int64((h >> np.uint64(20)) & line_mask) * LINE


@inline
def find_slot(slots, h, line_mask):
    """Return the slot of a context hash. If it is new, it replaces the slot with the least evidence."""
    check = np.uint8(h >> np.uint64(8))
    line = line_of(h, line_mask)
    found = find_check(slots, line, check)
    if found < LINE:
        return np.uint32(line + found)
    least, most = line, 256
    for k in range(0, LINE, SLOT):
        if slots[line + k + 1] < most:
            least, most = line + k, np.int64(slots[line + k + 1])
    slots[least] = check
    for k in range(1, SLOT):
        slots[least + k] = 0
    return np.uint32(least)


@inline
def learn(entries, i, bit, limit):
    """Move the 22-bit probability of entry `i` towards `bit` by 1 / (n + 1.6), for n up to `limit`."""
    i = np.uint64(i)
    entry = np.int64(entries[i])
    count, probability = entry & 1023, entry >> 10
    probability += ((((bit << 22) - bit) - probability) * np.int64(RATES[np.uint64(count)])) >> 16
    count += count < limit
    entries[i] = np.uint32((probability << 10) | count)


@inline
def fetch_slots(m, salt):
    """Prefetch the cache line of each context's slot for a nibble."""
    mask = np.uint64(m.state.line_mask)
    for i in range(m.hashes.size):
        prefetch(m.slots, line_of(mix_hash(m.hashes[i], salt), mask))


@inline
def fetch_next_slots(m, prefix):
    """Prefetch the slots of the next nibble for both values of the bit that is left after `prefix`."""
    fetch_slots(m, np.uint64(2 * prefix))
    fetch_slots(m, np.uint64(2 * prefix + 1))


@inline
def find_slots(m, salt):
    """Find each context's slot for this nibble, prefetched some time before."""
    mask = np.uint64(m.state.line_mask)
    for i in range(m.hashes.size):
        m.slot[i] = find_slot(m.slots, mix_hash(m.hashes[i], salt), mask)
    m.state.node = 1
