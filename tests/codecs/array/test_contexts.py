"""Contexts of numbers have the same hash exactly if what they are of is the same, and find their slots again."""

import numpy as np

from squeeze.codecs.array import contexts
from squeeze.codecs.array.layout import Layout
from squeeze.codecs.array.state import FULL, MARGIN, build_model
from squeeze.numerics.jit import kernel

FIRST = FULL.of_numbers


@kernel
def hash_all(m, i, place, prefix):
    contexts.hash_number(m, i)
    contexts.hash_byte(m, i, place, prefix)


@kernel
def find_slots(m, prefix, partial):
    contexts.find_slots(m, prefix, partial)


def model_of(series: list[int]):
    model = build_model(len(series), Layout(2), FULL)
    model.numbers[MARGIN:] = series
    return model


def hashes(model, i: int, place: int = 0, prefix: int = 1) -> np.ndarray:
    hash_all(model, i, place, prefix)
    found: np.ndarray = model.hashes.copy()
    return found


def test_whole_numbers_are_told_apart_by_those_before():
    model = model_of([5, 7, 5, 7, 6, 7, 0])
    second, fourth, sixth = (hashes(model, i)[:FIRST] for i in (2, 4, 6))
    assert np.array_equal(second, fourth)  # 7 before, and 5 before that
    assert (fourth == sixth).tolist() == [True, True, False, True, True]  # only the one of two numbers


def test_columns_have_contexts_of_their_own():
    model = model_of([5] * 9)
    own = hashes(model, 4)
    model.state.column = 1
    assert (hashes(model, 4) != own).all()


def test_bytes_are_told_apart_by_their_place_and_the_byte_above():
    model = model_of([0x1234, 0x1234, 0x1299, 0x1234, 0])
    low, other = hashes(model, 2)[FIRST:], hashes(model, 3)[FIRST:]
    assert low[0] == other[0] and low[1] != other[1] and low[2] == other[2] and low[3] != other[3]
    assert (hashes(model, 2, 1)[FIRST:] != low).all()
    assert (hashes(model, 2, 0, 0x112)[FIRST:] == low).tolist() == [True, True, False, False, True, True]


def test_slots_of_whole_numbers_depend_on_all_bits_and_those_of_bytes_on_the_byte():
    model = model_of([1, 2, 3])
    hash_all(model, 2, 0, 1)
    places = []
    for prefix, partial in ((1, 1), (2, 1), (1, 1)):
        find_slots(model, prefix, partial)
        places.append(model.slot.copy())
    assert np.array_equal(places[0], places[2]) and model.state.node == 1
    assert (places[0] == places[1]).tolist() == [False] * FIRST + [True] * FULL.of_bytes
