"""Slots of levels 4 to 6."""

import numpy as np

from squeeze.numerics.bitmodels import slots as hashed
from squeeze.numerics.jit import kernel


@kernel
def slot_of(slots, counters, h, buckets):
    return hashed.find_slot(slots, counters, h, buckets)


@kernel
def histories_at(slot):
    return hashed.histories_at(slot)


def test_slots_are_found_again_and_the_weaker_of_a_pair_makes_room():
    slots = np.zeros(hashed.BUCKET, np.uint8)
    counters = slots.view(np.uint16)
    hashes = [np.uint64(k * 0x1010101) for k in range(1, 6)]
    found = []
    for h, history in zip(hashes, (9, 9, 3, 9), strict=False):
        found.append(slot_of(slots, counters, h, 1))
        slots[histories_at(found[-1]) + 1] = history
    assert found == [2, 0, 3, 1]
    assert [slot_of(slots, counters, h, 1) for h in hashes[:4]] == found
    assert slot_of(slots, counters, hashes[4], 1) == found[2]
