"""Hashed slots of contexts with bit histories and direct counters.

A slot serves one context and one nibble of a byte: 15 bit histories (histories.py), 15 counters of 16 bits, and a check
of 24 bits. Four slots are a bucket of three cache lines. The first has an 8-bit check and the histories of all four.
The others have the rest of the checks and the counters, each of two slots. A hash may be in one of these pairs, so only
two of the lines are read. A counter is a 12-bit probability and a 4-bit count of updates,
so that it adapts fast at first and slowly later (the direct models of PAQ6 and ZPAQ).
"""

import numpy as np

from squeeze.numerics.integer_vectors import first_place, places_of
from squeeze.numerics.jit import inline, prefetch
from squeeze.numerics.logistic import STRETCH

BUCKET = 192  # bytes
_SLOT = 16
_SLOTS = 4
_FRESH = np.uint16(2048 << 4)

STRETCH_FLOAT = (STRETCH / 4096).astype(np.float32)  # natural logits of (i + 1/2) / 4096
CONFIDENCE = np.array([0, *(min(1.0, (n + 2) / 12) for n in range(1, 16))], np.float32)


@inline
def bucket_of(h, buckets):
    """Return the bucket of a hash."""
    return np.int64(((h >> np.uint64(32)) * np.uint64(buckets)) >> np.uint64(32))


@inline
def half_of(h):
    """Return the half of its bucket where a hash may be: its two slots have their counters in one cache line."""
    return np.int64((h >> np.uint64(24)) & np.uint64(1))


@inline
def fetch(slots, h, buckets):
    """Prefetch the bucket of a hash."""
    line = bucket_of(h, buckets) * BUCKET
    prefetch(slots, line)
    prefetch(slots, line + 64 + 64 * half_of(h))


@inline
def find_slot(slots, counters, h, buckets):
    """Return the number of the slot of a hash. If it is new, it replaces the one of two with less evidence.

    `counters` is the memory of `slots` as uint16.
    """
    bucket = bucket_of(h, buckets)
    check, wide_check = np.uint8(h), np.uint16(h >> np.uint64(8))
    line = bucket * BUCKET
    first = 2 * half_of(h)
    places = places_of(slots, line, check) & (0x10001 << (_SLOT * first))
    while places:
        place = first_place(places)
        if counters[np.uint64((line >> 1) + 32 + place)] == wide_check:
            return bucket * _SLOTS + place // _SLOT
        places &= places - 1
    evidence = line + _SLOT * first + 1
    least = first + np.int64(slots[np.uint64(evidence + _SLOT)] < slots[np.uint64(evidence)])
    start = np.uint64(line + _SLOT * least)
    slots[start] = check
    for k in range(1, _SLOT):
        slots[start + np.uint64(k)] = 0
    start = np.uint64((line >> 1) + 32 + 16 * least)
    counters[start] = wide_check
    for k in range(1, 16):
        counters[start + np.uint64(k)] = _FRESH
    return bucket * _SLOTS + least


@inline
def recall(slots, counters, slot, learned, learned_counters, h, buckets):
    """Initialise a new slot from the learned slots of the same hash, if they have one."""
    bucket = bucket_of(h, buckets)
    check, wide_check = np.uint8(h), np.uint16(h >> np.uint64(8))
    line = bucket * BUCKET
    first = 2 * half_of(h)
    for k in range(first, first + 2):
        source, values = line + _SLOT * k, (line >> 1) + 32 + 16 * k
        if learned[source] == check and learned_counters[values] == wide_check:
            history_at, value_at = histories_at(slot), counters_at(slot)
            for i in range(1, _SLOT):
                slots[history_at + i] = learned[source + i]
                counters[value_at + i] = learned_counters[values + i]
            return


@inline
def histories_at(slot):
    """Return where the histories of a slot begin."""
    return (slot >> 2) * BUCKET + (slot & 3) * _SLOT


@inline
def counters_at(slot):
    """Return where the counters of a slot begin."""
    return (slot >> 2) * (BUCKET // 2) + 32 + (slot & 3) * 16


_RATES = np.array([65536 * 2 // (2 * n + 3) for n in range(15)] + [4096], np.int32)  # 1 / (n + 1.5), in the end 1 / 16


@inline
def learn_counter(counters, index, bit):
    """Move a counter's probability towards `bit`."""
    index = np.uint64(index)
    value = np.int64(counters[index])
    count, probability = value & 15, value >> 4
    target = 4095 if bit else 0
    probability += ((target - probability) * np.int64(_RATES[np.uint64(count)]) + 32768) >> 16
    counters[index] = np.uint16((probability << 4) | min(count + 1, 15))


RUN_MAP = 512  # entries of one context's map of runs: 64 lengths x 8 bits of a byte


@inline
def update_run(run, byte):
    """Update a run after a byte: the byte that followed (low 8 bits) and how often it did in a row (high 8 bits, 0:
    never).
    """
    if run == 0 or (run & 255) != byte:
        return 256 | byte
    return run + 256 if run >> 8 < 255 else run
