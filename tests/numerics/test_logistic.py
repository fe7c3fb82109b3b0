"""Stretch and squash: the logit and the logistic function as tables."""

import math

import numpy as np
import pytest

from squeeze.numerics import logistic
from squeeze.numerics.jit import kernel


@kernel
def squash(logit):
    return logistic.squash(logit)


def test_stretch_is_the_logit():
    p = (np.arange(4096) + 0.5) / 4096
    assert np.abs(logistic.STRETCH - 4096 * np.log(p / (1 - p))).max() <= 0.51


def test_squash_is_the_logistic_function():
    for x in [-65535, -40000, -4097, -1, 0, 1, 31, 32, 33, 5000, 65535]:
        assert squash(x) / 2**32 == pytest.approx(1 / (1 + math.exp(-x / 4096)), rel=2e-5, abs=2**-32)


def test_squash_rises_and_stays_inside():
    values = [squash(x) for x in range(-logistic.LOGIT_MAX, logistic.LOGIT_MAX + 1, 13)]
    assert values == sorted(values)
    assert values[0] >= 1
    assert values[-1] < 2**32
