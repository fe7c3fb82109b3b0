"""Confidence intervals against textbook values, and how often they hold what is so."""

import numpy as np
import pytest

from squeeze.numerics import intervals
from squeeze.numerics.intervals import LEAST, interval


@pytest.mark.parametrize(("freedom", "wanted"), [(7, 2.3646), (10, 2.2281), (30, 2.0423), (1000, 1.9623)])
def test_quantiles_of_students_t_are_within_a_thousandth(freedom, wanted):
    assert intervals._student(freedom) == pytest.approx(wanted, rel=1e-3)


def test_blocks_of_one_size_have_the_usual_interval():
    means = np.random.default_rng(1).normal(3, 1, 20)
    low, high = interval((means * 128).tolist(), [128] * 20)
    half = 2.0930 * means.std(ddof=1) / np.sqrt(20)
    assert (low, high) == pytest.approx((means.mean() - half, means.mean() + half), rel=1e-3)


def test_intervals_hold_the_mean_as_often_as_they_say():
    draw, held = np.random.default_rng(2), 0
    for _ in range(1000):
        counts = draw.integers(50, 128, 12)
        sums = counts * 2.0 + draw.normal(0, 1, 12) * counts
        low, high = interval(sums.tolist(), counts.tolist())
        held += low <= 2.0 <= high
    assert 925 <= held <= 970


def test_few_blocks_have_no_interval():
    assert interval([1.0] * (LEAST - 1), [2] * (LEAST - 1)) is None
    assert interval([1.0] * LEAST, [2] * LEAST) == (0.5, 0.5)
