"""A trie of the vocabulary: every token by its own decisions, whose probabilities multiply to the token's."""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from squeeze.codecs.tokenwise import model as tokenwise
from squeeze.numerics import trie
from squeeze.numerics.frequencies import Cdf
from squeeze.numerics.jit import kernel
from squeeze.numerics.logistic import LOGIT_BITS, LOGIT_MAX
from squeeze.numerics.trie import STOP, Trie, build

VOCABULARIES = {
    "one": [b"only"],
    "one byte": [b"\x00"],
    "two": [b"a", b"b"],
    "prefixes": [b"a" * n for n in range(1, 12)],
    "prefixes and others": [b"\x00", b"\x00\x00", b"\x00\xff", b"\xff", b"\xff\x00", b"\xff\xff\xff"],
    "all bytes": [bytes([b]) for b in range(256)],
    "stop, then bits": [b"ab", b"abc", b"abcde", b"abcdf", b"abd", b"b"],
    "far apart": [b"x" * 100 + b"a", b"x" * 100 + b"b", b"x" * 99],
}


@kernel
def logarithms(x, out):
    for i in range(x.size):
        out[i] = trie.logarithm(x[i])


@kernel
def logits(t, cdf, out):
    for node in range(t.low.size):
        out[node] = trie.logit_of(t, cdf, 0, node)


def path(t: Trie, leaf: int) -> list[tuple[int, int]]:
    """(node, bit) from the root to a leaf."""
    steps, node = [], 0 if t.low.size else ~0
    while node >= 0:
        bit = int(leaf >= t.middle[node])
        steps.append((node, bit))
        node = int(t.children[node, bit])
    assert ~node == leaf
    return steps


def check(words: list[bytes]) -> None:
    t = build(words)
    assert t.low.size == len(words) - 1  # a decision with one outcome is no node
    for leaf, word in enumerate(words):
        assert t.spelling[t.offsets[leaf] : t.offsets[leaf + 1]].tobytes() == word
        steps = path(t, leaf)
        assert len(steps) == t.decisions[leaf]
        for node, bit in steps:
            depth, shift = int(t.depth[node]), int(t.shift[node])
            assert t.low[node] <= leaf < t.high[node] and t.low[node] < t.middle[node] < t.high[node]
            if shift == STOP:
                assert bit == (len(word) > depth)
            else:
                assert bit == word[depth] >> shift & 1
        order = [(int(t.depth[node]), 7 - int(t.shift[node])) for node, _ in steps]
        assert order == sorted(set(order))  # to stop comes before the bits of a byte, a high bit before a low one


@pytest.mark.parametrize("name", VOCABULARIES)
def test_every_leaf_is_reached_by_its_own_spelling(name):
    check(sorted(VOCABULARIES[name]))


@settings(max_examples=80)
@given(st.sets(st.binary(min_size=1, max_size=6), min_size=1, max_size=60))
def test_every_leaf_of_any_vocabulary_is_reached(words):
    check(sorted(words))


@settings(max_examples=40)
@given(st.sets(st.text("ab\x00", min_size=1, max_size=8).map(str.encode), min_size=1, max_size=80), st.randoms())
def test_decisions_multiply_to_the_probability(words, random):
    t = build(sorted(words))
    shares = [random.randrange(1, 1 << random.randrange(1, 40)) for _ in words]
    counts = np.concatenate([[0], np.cumsum(shares)]).astype(np.uint64)
    for leaf, share in enumerate(shares):
        product = 1.0
        for node, bit in path(t, leaf):
            low, middle, high = (int(counts[getattr(t, part)[node]]) for part in ("low", "middle", "high"))
            product *= (high - middle if bit else middle - low) / (high - low)
        assert product == pytest.approx(share / sum(shares), rel=1e-9)


def test_logits_are_those_of_the_counts():
    words = sorted({bytes([a, b]) for a in b"abcd" for b in b"efghij"} | {b"a", b"abc"})
    t, generator = build(words), np.random.default_rng(1)
    shares = np.exp(generator.uniform(0, 25, len(words))).astype(np.uint64) + np.uint64(1)
    counts = np.concatenate([np.zeros(1, np.uint64), np.cumsum(shares)])
    found = np.zeros(t.low.size, np.int64)
    logits(t, Cdf(counts[None], None), found)
    for node in range(t.low.size):
        low, middle, high = (int(counts[getattr(t, part)[node]]) for part in ("low", "middle", "high"))
        exact = 4096 * math.log((high - middle) / (middle - low))
        assert abs(found[node] - min(max(exact, -LOGIT_MAX), LOGIT_MAX)) <= 1.1  # it is rounded down
    assert LOGIT_BITS == 12


def test_followed_paths_are_those_that_decoding_walks():
    words = sorted(VOCABULARIES["stop, then bits"])
    t, generator = build(words), np.random.default_rng(2)
    counts = np.zeros((len(words) + 1, len(words) + 1), np.uint64)
    counts[:, 1:] = np.cumsum(generator.integers(1, 1 << 40, (len(words) + 1, len(words))), axis=1)
    entries = np.array([*range(len(words)), -7])  # the last is an escape
    starts = np.concatenate([[0], np.cumsum(t.decisions)]).astype(np.int64)
    followed, surprises = np.zeros(starts[-1], np.int32), np.zeros(entries.size, np.int64)
    tokenwise.path_logits(t, Cdf(counts, None), entries, starts, followed, surprises)
    every = np.zeros(t.low.size, np.int64)
    for row in range(len(words)):
        logits(t, Cdf(counts[row : row + 1], None), every)
        expected = [every[node] for node, _ in path(t, row)]
        assert followed[starts[row] : starts[row + 1]].tolist() == expected
    total = np.log(counts[:, -1].astype(np.float64) / 2.0**40)
    np.testing.assert_allclose(surprises / 2.0**24, total, atol=1e-6)


def test_the_logarithm_is_within_its_error():
    """Allow 62 roundings of ln 2, each 0.97 of 2^-24, and those of the table and the interpolation."""
    generator = np.random.default_rng(3)
    x = np.concatenate(
        [np.arange(1, 9000), 2.0 ** generator.uniform(0, 62.99, 20_000), [2**k - 1 for k in range(1, 63)]]
    ).astype(np.int64)
    found = np.zeros(x.size, np.int64)
    logarithms(x, found)
    exact = np.array([math.log(int(v)) for v in x]) * 2.0**24
    error = found - exact
    exponent = np.floor(exact / trie._LN2)
    assert error.max() <= 0 and (error + 0.97 * exponent).min() > -3
    ordered = np.sort(x)
    logarithms(ordered, found)
    assert (np.diff(found) >= 0).all()
    ones = np.zeros(63, np.int64)
    logarithms(2 ** np.arange(63), ones)
    assert ones.tolist() == [k * int(trie._LN2) for k in range(63)] and ones[40] == trie.FIRST_CHOICE
