"""Bit histories and their slots: they fit a byte, are found again, and learn a frequency."""

import numpy as np
import pytest

from squeeze.numerics.bitmodels import histories, layout
from squeeze.numerics.jit import kernel


@kernel
def slot_of(slots, h, mask):
    return histories.find_slot(slots, h, mask)


@kernel
def learn_all(entries, bits):
    for bit in bits:
        histories.learn(entries, 0, bit, 1023)


def test_histories_fit_a_byte_and_stay_in_it():
    reached, todo = {0}, [0]
    for state in todo:
        for bit in (0, 1):
            after = int(histories.NEXT[bit * 256 + state])
            if after not in reached:
                reached.add(after)
                todo.append(after)
    assert 200 < len(reached) <= 256
    assert 0 not in {int(histories.NEXT[bit * 256 + s]) for s in reached for bit in (0, 1)}


def test_a_history_of_ones_predicts_a_one_ever_more():
    state, before = 0, 0.5
    for _ in range(40):
        state = int(histories.NEXT[256 + state])
        now = (int(histories.START[state]) >> 10) / 2**22
        assert now > before
        before = now


def test_slots_are_found_again_and_the_weakest_makes_room():
    slots = np.zeros(layout.LINE, np.uint8)
    mask = np.uint64(0)
    hashes = [np.uint64(k << 8) for k in range(1, 5)]
    found = []
    for h, evidence in zip(hashes, (3, 9, 9, 9), strict=True):
        found.append(int(slot_of(slots, h, mask)))
        slots[found[-1] + 1] = evidence
    assert sorted(found) == [0, 16, 32, 48]
    assert [int(slot_of(slots, h, mask)) for h in hashes] == found
    assert int(slot_of(slots, np.uint64(99 << 8), mask)) == found[0]


def test_an_adaptive_map_learns_a_frequency():
    entries = np.full(1, 1 << 31, np.uint32)
    bits = np.random.default_rng(4).random(20_000) < 0.9
    learn_all(entries, bits.astype(np.int64))
    assert (int(entries[0]) >> 10) / 2**22 == pytest.approx(0.9, abs=0.03)
