"""The mixer and the APM: what they learn, and how they begin."""

import numpy as np
import pytest

from squeeze.numerics import logistic
from squeeze.numerics.bitmodels import mixer
from squeeze.numerics.jit import kernel


@kernel
def learn(weights, values, bit):
    error = ((bit << 32) - bit - logistic.squash(mixer.dot(weights, values))) >> 16
    mixer.train(weights, values, error, 5)


@kernel
def squash(logit):
    return logistic.squash(logit)


@kernel
def refine(apm, logit):
    return mixer.refine(apm, 1, logit)


def test_the_mixer_learns_which_input_to_trust():
    weights, values = np.full(4, 10_000, np.int32), np.zeros(4, np.int32)
    generator = np.random.default_rng(6)
    for _ in range(3_000):
        bit = int(generator.integers(0, 2))
        values[:] = [(2 * bit - 1) * 4096, *generator.integers(-8192, 8192, 2), 0]
        learn(weights, values, bit)
    assert weights[0] > 4 * abs(weights[1:]).max()


def test_a_fresh_apm_changes_nothing():
    apm = mixer.fresh_apm(2)
    for logit in (-65535, -30000, 0, 4096, 65535):
        assert refine(apm, logit) / 2**32 == pytest.approx(squash(logit) / 2**32, abs=0.02)
