"""The binary arithmetic coder, alone: exact, close to the ideal code length, and to another library's range coder."""

import numpy as np
import pytest

from squeeze.numerics.bitmodels import coder
from squeeze.numerics.jit import kernel


@kernel
def encode_all(bits, probabilities, state, coded):
    for i in range(bits.size):
        coder.encode(np.int64(bits[i]), probabilities[i], state, coded)


@kernel
def decode_all(bits, probabilities, state, coded):
    for i in range(bits.size):
        bits[i] = coder.decode(probabilities[i], state, coded)


def code(bits, probabilities):
    """Encode bits, check that they decode, and return the coded bytes."""
    state, coded = np.zeros(3, np.uint64), np.zeros(4 * bits.size + 64, np.uint8)
    coder.start_encoder(state)
    encode_all(bits, probabilities, state, coded)
    coded = coded[: coder.finish_encoder(state, coded)].copy()
    coder.start_decoder(state, coded)
    decoded = np.zeros_like(bits)
    decode_all(decoded, probabilities, state, coded)
    assert np.array_equal(decoded, bits)
    return coded


def draw(count, spread, seed=5):
    """Bits drawn from 32-bit probabilities whose logits are spread by `spread`."""
    generator = np.random.default_rng(seed)
    p = 1 / (1 + np.exp(-generator.normal(0, spread, count)))
    probabilities = np.clip((p * 2**32).astype(np.int64), 1, 2**32 - 1)
    bits = (generator.random(count) < probabilities / 2**32).astype(np.uint8)
    return bits, probabilities


def ideal_bits(bits, probabilities):
    p = probabilities / 2**32
    return -np.log2(np.where(bits == 1, p, 1 - p)).sum()


@pytest.mark.parametrize("spread", [0.0, 1.0, 4.0, 12.0])
def test_length_is_the_ideal_code_length(spread):
    bits, probabilities = draw(400_000, spread)
    assert 8 * code(bits, probabilities).size <= ideal_bits(bits, probabilities) * 1.0001 + 8


def test_length_is_at_most_that_of_constriction():
    """Its range coder rounds probabilities to 24 bits and ends on a 32-bit word, so it may be a little longer."""
    constriction = pytest.importorskip("constriction", reason="constriction has no wheel for this machine")
    bits, probabilities = draw(1_000_000, 2.0)
    rival = constriction.stream.queue.RangeEncoder()
    rival.encode(bits.astype(np.int32), constriction.stream.model.Bernoulli(perfect=False), probabilities / 2**32)
    theirs = rival.get_compressed().size * 4
    assert theirs * 0.999 < code(bits, probabilities).size <= theirs * 1.0001 + 4


def test_a_certain_bit_is_nearly_free():
    count = 1_000_000
    ones = np.ones(count, np.uint8), np.full(count, 2**32 - 1, np.int64)
    zeros = np.zeros(count, np.uint8), np.ones(count, np.int64)
    assert code(*ones).size <= 8
    assert code(*zeros).size <= 8


def test_the_least_likely_bits_can_be_coded():
    count = 1_000
    unlikely = np.zeros(count, np.uint8), np.full(count, 2**32 - 1, np.int64)
    assert code(*unlikely).size == pytest.approx(4 * count, abs=8)


@pytest.mark.parametrize("size", [0, 1, 7, 500])
@pytest.mark.parametrize("bit", [0, 1])
def test_bytes_that_no_longer_fit_are_lost(bit, size):
    """A buffer may be full within what is coded between two looks at it: nothing around it is written."""
    count, around = 1_000, 4_096
    probabilities = np.full(count, 1 if bit else 2**32 - 1, np.int64)
    probabilities[::7] = 2**31  # with carries
    room = np.full(size + 2 * around, 77, np.uint8)
    state, coded = np.zeros(3, np.uint64), room[around : around + size]
    coder.start_encoder(state)
    encode_all(np.full(count, bit, np.uint8), probabilities, state, coded)
    assert coder.finish_encoder(state, coded) > size
    assert (room[:around] == 77).all() and (room[around + size :] == 77).all()


def test_carries_run_through_what_was_written():
    """Long runs of the upper part of the interval make long runs of 0xFF, which a late carry must turn over."""
    for seed in range(200):
        generator = np.random.default_rng(seed)
        probabilities = generator.choice(np.array([1, 2, 2**31, 2**32 - 2, 2**32 - 1], np.int64), 300)
        bits = generator.integers(0, 2, 300).astype(np.uint8)
        code(bits, probabilities)


def test_nothing_is_coded_in_no_bytes():
    assert code(np.zeros(0, np.uint8), np.zeros(0, np.int64)).size == 0
