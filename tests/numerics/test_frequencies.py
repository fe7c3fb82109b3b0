"""Sums of groups of leaves: what they are expanded to is what all the sums would be."""

import numpy as np
import pytest

from squeeze.codecs.tokenwise.drafts import rule_out
from squeeze.numerics import exact
from squeeze.numerics.frequencies import GROUP, Cdf, allocate, before, cumulative, frequency, total
from squeeze.numerics.jit import kernel
from tests.makers.cdfs import put

LEAVES = [1, 2, GROUP - 1, GROUP, GROUP + 1, 3 * GROUP, 1000]


@kernel
def counted(logits, bias, cdf):
    for r in range(logits.shape[0]):
        exact.cumulate(logits[r], bias, cdf, r)


@kernel
def asked(cdf, sums, frequencies):
    for r in range(sums.shape[0]):
        for leaf in range(frequencies.shape[1]):
            sums[r, leaf], frequencies[r, leaf] = before(cdf, r, leaf), frequency(cdf, r, leaf)
        sums[r, frequencies.shape[1]] = total(cdf, r)
        if before(cdf, r, frequencies.shape[1]) != total(cdf, r):
            sums[r] = 0


def some(leaves: int) -> Cdf:
    random, cdf = np.random.default_rng(leaves), allocate(5, leaves)
    logits, bias = (random.normal(0, 6, (5, leaves)).astype(np.float32) for _ in range(2))
    counted(logits, bias[0], cdf)
    return cdf


@pytest.mark.parametrize("leaves", LEAVES)
def test_what_is_asked_is_what_all_sums_say(leaves):
    cdf = some(leaves)
    plain = cumulative(cdf)
    assert plain.shape == (5, leaves + 1) and (plain[:, 0] == 0).all()
    assert (np.diff(plain).max(axis=1) == (1 << 40) + 1).all() and np.diff(plain).min() >= 1
    for kept in (cdf, Cdf(plain, None)):
        sums, frequencies = np.zeros_like(plain), np.zeros((5, leaves), np.uint64)
        asked(kept, sums, frequencies)
        assert np.array_equal(sums, plain) and np.array_equal(frequencies, np.diff(plain))
        assert np.array_equal(cumulative(kept), plain)


@pytest.mark.parametrize("leaves", LEAVES)
def test_sums_that_are_put_in(leaves):
    cdf, other = some(leaves), allocate(9, leaves)
    places = np.array([8, 0, 3, 5, 4])
    put(cumulative(cdf)[:, 1:], other, places)
    assert np.array_equal(other.sums[places], cdf.sums)
    assert np.array_equal(other.parts[places], np.floor(cdf.parts))
    assert not np.delete(other.parts, places, 0).any()


@pytest.mark.parametrize("leaves", LEAVES)
def test_a_leaf_that_is_ruled_out_counts_one(leaves):
    cdf, rows = some(leaves), np.array([4, 1, 2, 0])
    wanted, leaf = np.diff(cumulative(cdf)), np.array([leaves - 1, -1, leaves // 2, 0])
    rule_out(cdf, rows, leaf)
    wanted[rows[[0, 2, 3]], leaf[[0, 2, 3]]] = 1
    plain = cumulative(cdf)
    assert np.array_equal(np.diff(plain), wanted) and np.array_equal(cdf.sums[:, -1], plain[:, -1])
    assert np.array_equal(cdf.sums[:, :-1], plain[:, :-1:GROUP])
