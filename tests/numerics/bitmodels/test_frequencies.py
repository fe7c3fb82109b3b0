"""Frequencies of bytes, and what they say of bits, compared with quotients of floats."""

import numpy as np
import pytest

from squeeze.numerics.bitmodels import frequencies
from squeeze.numerics.jit import kernel

SHARES = np.random.default_rng(3).gamma(0.2, size=256).astype(np.float32)
SHARES /= SHARES.max()


@kernel
def count(shares, leaves, counts):
    frequencies.count(shares, leaves)
    frequencies.add_up(leaves, counts)


@kernel
def probability(counts, partial):
    return frequencies.probability(counts, partial)


@kernel
def top_prediction(counts):
    return frequencies.top_prediction(counts)


@pytest.fixture
def counts():
    counts = np.zeros(512, np.int64)
    count(SHARES, np.zeros(256, np.int32), counts)
    return counts


def test_frequencies_are_those_of_the_shares(counts):
    assert counts[256:] == pytest.approx(SHARES.astype(np.float64) * 2**24, abs=1.1)
    assert counts[256:].min() >= 1
    assert counts[1] == counts[256:].sum()


def test_what_is_no_share_is_the_rarest():
    shares, counts = SHARES.copy(), np.zeros(512, np.int64)
    shares[[7, 70]] = np.nan, 2
    count(shares, np.zeros(256, np.int32), counts)
    assert counts[256 + 7] == counts[256 + 70] == 1


@pytest.mark.parametrize("byte", [0, ord("t"), 255, int(SHARES.argmax())])
def test_probabilities_of_bits_are_those_of_bytes(counts, byte):
    node, product = 1, 1.0
    for shift in range(7, -1, -1):
        bit = (byte >> shift) & 1
        one = probability(counts, node) / 65536
        product *= one if bit else 1 - one
        node = 2 * node + bit
    assert product == pytest.approx(counts[256 + byte] / counts[1], rel=1e-2, abs=1e-5)


@pytest.mark.parametrize("power", [0.1, 1, 3, 30])
def test_the_top_prediction_is_the_most_probable_byte(power):
    shares, counts = SHARES**power, np.zeros(512, np.int64)
    count(shares, np.zeros(256, np.int32), counts)
    top, likeliest = int(top_prediction(counts)), counts[256:].max() / counts[1]
    assert top & 255 == SHARES.argmax()
    assert top >> 8 == sum(likeliest * 256 // 1 > least for least in (32, 64, 104, 152, 200, 232, 250))
