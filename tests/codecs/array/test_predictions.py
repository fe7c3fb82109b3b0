"""Predictions of numbers are exact on series that follow their rule, and the scales of their errors tell so."""

import numpy as np
import pytest

from squeeze.codecs.array import predictions
from squeeze.codecs.array.layout import Layout
from squeeze.codecs.array.state import FULL, MARGIN, build_model
from squeeze.numerics.jit import kernel


@kernel
def follow(m, values):
    for i in range(values.shape[0]):
        m.state.column = i % m.state.columns
        predictions.predict(m, i)
        for k in range(m.values.size):
            values[i, k] = m.values[k]
        predictions.learn(m, i)


@kernel
def distance(a, b):
    return predictions.distance(a, b)


def predicted(series: np.ndarray, form: Layout):
    """Return the model after a series, and what it predicted for each number, int64 [numbers, predictions]."""
    model = build_model(series.size, form, FULL)
    model.numbers[MARGIN:] = series
    values = np.zeros((series.size, FULL.predictions), np.int64)
    follow(model, values)
    return model, values


def test_a_line_is_predicted_by_its_slope():
    series = 7 + 1000 * np.arange(400)
    model, values = predicted(series, Layout(8))
    assert (values[2:, 1] == series[2:]).all() and (values[1:, 0] == series[:-1]).all()
    assert model.state.best == 1 and model.scales[1] == 0
    assert abs(model.scales[0] - 16 * np.log2(2001)) < 2  # a miss by 1000, in sixteenths of a bit


def test_a_parabola_is_predicted_by_three_numbers():
    series = np.arange(400) ** 2
    model, values = predicted(series, Layout(4))
    assert (values[3:, 4] == series[3:]).all() and model.state.best == 4


def test_columns_that_move_alike_are_predicted_by_the_one_before():
    walk = np.random.default_rng(0).integers(-9999, 9999, 300).cumsum()
    series = np.stack([walk, walk + 50_000], 1).ravel()
    _, values = predicted(series, Layout(4, 2))
    assert (values[3::2, 3] == series[3::2]).all()


@pytest.mark.parametrize("width", [2, 4])
def test_predictions_stay_within_the_range_of_numbers(width):
    edge = 1 << 8 * width - 1
    _, values = predicted(np.tile([-edge, edge - 1, edge - 1, -edge], 20), Layout(width))
    assert -edge <= values.min() and values.max() < edge


def test_numbers_of_64_bits_wrap_around():
    series = np.tile(np.array([-(1 << 63), (1 << 63) - 1], np.int64), 20)
    _, values = predicted(series, Layout(8))
    assert values[3, 1] == 1 - (1 << 63)  # twice -2^63 is 0 modulo 2^64; less 2^63 - 1


def test_distances_are_limited():
    assert distance(5, -3) == 8 and distance(-3, 5) == -8
    assert distance((1 << 63) - 1, -(1 << 63)) == 1 << 60 and distance(-(1 << 63), (1 << 63) - 1) == -(1 << 60)
