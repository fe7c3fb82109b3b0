"""Vector code over integers gives what the loops that it stands for give, at every length and for extreme values."""

import numpy as np
import pytest

from squeeze.numerics import integer_vectors
from squeeze.numerics.jit import kernel

SIZES = [1, 2, 7, 8, 9, 20, 24, 40]
LOGIT = 65535


@kernel
def product(weights, inputs):
    return integer_vectors.dot(weights, inputs)


@kernel
def learn(weights, factor, inputs, fine):
    if fine:
        integer_vectors.add_scaled_24(weights, factor, inputs)
    else:
        integer_vectors.add_scaled_22(weights, factor, inputs)


@kernel
def place_of(line, check):
    return integer_vectors.find_check(line, 64, check)


def drawn(size):
    rng = np.random.default_rng(size)
    weights = rng.integers(-(1 << 31), 1 << 31, size, np.int64).astype(np.int32)
    inputs = rng.integers(-LOGIT, LOGIT + 1, size).astype(np.int32)
    inputs[0] = -LOGIT
    return weights, inputs


@pytest.mark.parametrize("size", SIZES)
def test_products_are_summed_in_64_bits(size):
    weights, inputs = drawn(size)
    assert product(weights, inputs) == sum(int(w) * int(x) for w, x in zip(weights, inputs, strict=True))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shift", [22, 24])
@pytest.mark.parametrize("factor", [-(1 << 20), -1, 0, 655350])
def test_a_step_of_learning_is_rounded(size, shift, factor):
    weights, inputs = drawn(size)
    weights //= 4  # no sum overflows
    expected = weights + ((factor * inputs.astype(np.int64) + (1 << shift - 1)) >> shift)
    learn(weights, factor, inputs, shift == 24)
    assert np.array_equal(weights, expected)


def test_the_first_slot_with_a_check_is_found():
    memory = np.full(192, 7, np.uint8)
    line = memory[64:128]
    line[::16] = [1, 9, 9, 200]
    assert [place_of(memory, np.uint8(check)) for check in (1, 9, 200, 7)] == [0, 16, 48, 64]


@kernel
def word_at(data, place):
    return integer_vectors.word_at(data, place)


def test_a_word_begins_at_any_byte():
    data = np.arange(1, 20, dtype=np.uint8)
    assert [int(word_at(data, place)) for place in (0, 3, 11)] == [
        int.from_bytes(data[place : place + 8].tobytes(), "little") for place in (0, 3, 11)
    ]
