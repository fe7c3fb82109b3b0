"""The output bias compared with plain arithmetic, for any groups and any order."""

import threading

import numpy as np
import pytest

from squeeze.codecs.tokenwise.bias import Bias, GroupGradient, Stopped, add
from squeeze.numerics.frequencies import Cdf, allocate
from tests.makers.cdfs import put

LEAVES = 37


def counts(rows: int, seed: int) -> np.ndarray:
    """uint64 [rows, LEAVES + 1]: cumulative frequencies as a language model gives them."""
    logits = np.random.default_rng(seed).normal(0, 4, (rows, LEAVES))
    frequencies = np.exp2(40 + logits - logits.max(axis=1, keepdims=True)).astype(np.uint64) + np.uint64(1)
    return np.concatenate([np.zeros((rows, 1), np.uint64), np.cumsum(frequencies, axis=1)], axis=1)


def entries(rows: int, seed: int) -> np.ndarray:
    """int64 [rows]; some are escapes."""
    return np.random.default_rng(seed).integers(-1, LEAVES, rows)


def plain(lanes: int, steps: int) -> list[np.ndarray]:
    """Compute the biases of every round in float64, from what `learnt` is given."""
    length = max(1, 64 // lanes)
    values, squares = [np.zeros(LEAVES), np.zeros(LEAVES)], np.ones(LEAVES)
    for first in range(0, steps - steps % length, length):
        gradient = np.zeros(LEAVES)
        for step in range(first, first + length):
            for row, entry in zip(counts(lanes, step), entries(lanes, step), strict=True):
                if entry >= 0:
                    gradient += np.diff(row.astype(np.float64)) / float(row[-1])
                    gradient[entry] -= 1
        squares = squares + gradient * gradient
        values.append(values[-1] - 0.5 * gradient / np.sqrt(squares))
    return values


def learnt(lanes: int, steps: int, groups: int) -> list[np.ndarray]:
    bias, parts = Bias(LEAVES, lanes, groups), np.array_split(np.arange(lanes), groups)
    seen = [GroupGradient(bias) for _ in parts]
    values = []
    for step in range(steps):
        values.append(bias.values(step))
        for group, part in zip(seen, parts, strict=True):
            group.add(Cdf(counts(lanes, step), None), np.arange(lanes)[part], entries(lanes, step)[part])
            group.reach(step + 1)
    return values


@pytest.mark.parametrize("lanes", [1, 3, 16, 64, 100])
def test_biases_are_those_of_adagrad_two_rounds_behind(lanes):
    steps = 5 * max(1, 64 // lanes) + 1
    expected, length = plain(lanes, steps), max(1, 64 // lanes)
    for step, values in enumerate(learnt(lanes, steps, 1)):
        # probabilities are cut to 20 bits, 64 or more of them are added
        np.testing.assert_allclose(values, expected[step // length], atol=max(lanes, 64) * 2.0**-19)


@pytest.mark.parametrize("groups", [2, 3])
def test_biases_do_not_depend_on_groups(groups):
    for one, other in zip(learnt(5, 60, 1), learnt(5, 60, groups), strict=True):
        assert np.array_equal(one, other)


def test_coded_entries_become_more_probable():
    bias = Bias(LEAVES, 1, 1)
    seen, row = GroupGradient(bias), Cdf(counts(1, 3), None)
    for step in range(64):
        seen.add(row, np.array([0]), np.array([5]))
        seen.reach(step + 1)
    values = bias.values(128)
    assert values[5] > 0 and (np.delete(values, 5) <= 0).all()


def test_a_group_waits_for_the_one_behind_and_ends_when_that_is_broken_off():
    bias = Bias(LEAVES, 64, 2)
    first, second = GroupGradient(bias), GroupGradient(bias)
    for step in (1, 2):
        first.reach(step)
    assert bias.values(1).sum() == 0  # the second round asks for no other group
    second.reach(1)
    assert bias.values(2) is not None
    ended = []

    def ahead() -> None:
        try:
            bias.values(3)
        except Stopped:
            ended.append(True)

    thread = threading.Thread(target=ahead)
    thread.start()
    bias.stop()
    thread.join()
    assert ended == [True]


def test_the_most_lanes_do_not_overflow():
    bias = Bias(LEAVES, 1024, 1)
    seen = GroupGradient(bias)
    certain = np.full((1, LEAVES + 1), (1 << 40) + LEAVES, np.uint64)
    certain[0, :2] = 0, 1 << 40
    certain[0, 2:] = (1 << 40) + np.arange(1, LEAVES)
    seen.add(Cdf(certain, None), np.zeros(1024, np.int64), np.ones(1024, np.int64))
    seen.reach(1)
    values = bias.values(2)
    assert values[0] < -0.49 and values[1] > 0.49


def test_groups_of_leaves_change_no_gradient():
    """Some frequencies are near multiples of 2^16, and at the ends."""
    generator = np.random.default_rng(1)
    near = np.arange(1, 300) * 65536.0
    wanted = [generator.uniform(0, 1 << 24, 20_000), *(near + shift for shift in (-2, -1.004, -1, -0.996, 0, 1))]
    parts = np.concatenate([*wanted, [0, 0.9, 65534.996, 65535, 2**24, 2.0**40], 2 ** generator.uniform(0, 40, 9_000)])
    parts = parts.astype(np.float32)
    parts = np.stack([parts, generator.permutation(parts)])
    cumulative = np.cumsum(parts.astype(np.uint64) + np.uint64(1), axis=1)
    grouped, rows = allocate(*parts.shape), np.array([1, 0, 1])
    put(cumulative, grouped, np.arange(2))
    kept = [grouped, grouped._replace(parts=parts), Cdf(np.insert(cumulative, 0, 0, axis=1), None)]
    gradients = np.zeros((3, parts.shape[1]), np.int32)
    for cdf, gradient in zip(kept, gradients, strict=True):
        add(cdf, rows, np.array([5, -1, 7]), gradient)
    assert (gradients == gradients[2]).all() and gradients.any()
