"""The arithmetic of exact inference compared with plain numpy: integers are equal, floats are the same float32."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from squeeze.numerics import exact
from squeeze.numerics.jit import kernel


@kernel
def quantise(x, top, out):
    return exact.quantise(x, top, out)


@kernel
def maximum(x):
    return exact.maximum(x)


@kernel
def rms_inverse(x, epsilon):
    return exact.rms_inverse(x, epsilon)


@kernel
def exp_negative(x, out):
    for i in range(x.size):
        out[i] = exact.exp_negative(x[i])


@pytest.mark.parametrize("top", [127, 32767])
@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1.0, 3e4, 1e30])
@pytest.mark.parametrize("count", [1, 2, 7, 64, 577])
def test_quantised_rows_are_within_half_a_step(top, scale, count):
    x = (np.random.default_rng(count).standard_normal(count) * scale).astype(np.float32)
    out = np.zeros(count, np.int16)
    found = quantise(x, top, out)
    largest = max(np.abs(x).max(), np.float32(1e-20))
    expected = np.rint(x * (np.float32(top) / largest))
    assert np.array_equal(out, expected.astype(np.int16)) and found == largest / np.float32(top)
    if scale > 1e-20:
        assert np.abs(out).max() == top
        assert np.abs(out * np.float64(found) - x).max() <= 0.51 * found


def test_quantise_rounds_half_to_even_and_knows_zero():
    out = np.zeros(6, np.int8)
    assert quantise(np.array([127, 0.5, 1.5, 2.5, -0.5, -3.5], np.float32), 127, out) == 1
    assert out.tolist() == [127, 0, 2, 2, 0, -4]
    assert quantise(np.array([0, -0.0, 0, 0, 0, 0], np.float32), 127, out) > 0 and not out.any()
    quantise(np.array([-5, 5, 0, 1e-9, 2, -2], np.float32), 127, out)
    assert out.tolist() == [-127, 127, 0, 0, 51, -51]


@settings(max_examples=200)
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=40))
def test_maximum_is_that_of_numpy(values):
    x = np.array(values, np.float32)
    assert maximum(x) == x.max()


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1.0, 1e4, 1e15])
@pytest.mark.parametrize("count", [1, 3, 64, 576, 5000])
def test_rms_inverse_is_within_its_error(scale, count):
    """Allow an error of 2^-21 of the largest value for integers of 21 bits, plus 2^-23 for rounding."""
    generator = np.random.default_rng(count)
    for values in (generator.standard_normal(count), generator.standard_normal(count) ** 9, np.full(count, 0.3)):
        x = (values * scale).astype(np.float32)
        expected = 1 / np.sqrt((x.astype(np.float64) ** 2).mean() + 1e-5)
        assert rms_inverse(x, np.float32(1e-5)) == pytest.approx(expected, rel=1e-6)
        assert rms_inverse(x[::-1].copy(), np.float32(1e-5)) == rms_inverse(x, np.float32(1e-5))
    assert rms_inverse(np.zeros(count, np.float32), np.float32(1e-5)) == pytest.approx(1e5**0.5, rel=1e-6)


def test_exp_is_within_its_error():
    """Allow an error of 2e-7 for the polynomial, plus 2e-7 times |x| for x / ln 2 as a float32."""
    x = np.concatenate([-np.linspace(0, 87, 300_001), -np.logspace(-9, 1.9, 50_000)]).astype(np.float32)
    out = np.zeros(x.size, np.float32)
    exp_negative(x, out)
    expected = np.exp(x.astype(np.float64))
    assert (np.abs(out / expected - 1) / np.maximum(1, np.abs(x))).max() < 2.5e-7
    assert out[0] == 1 and out.max() == 1 and out.min() > 0
    far = np.array([-87, -88, -1e3, -1e30, -np.inf, -0.0], np.float32)
    out = np.zeros(far.size, np.float32)
    exp_negative(far, out)
    assert (out[:5] == out[0]).all() and out[5] == 1
    assert 1e-38 < out[0] < 2e-38
