"""Predictions of samples are within their range, exact where their rule holds, and better together."""

import numpy as np
import pytest

from squeeze.codecs.sound import predictions
from squeeze.codecs.sound.layout import Layout
from squeeze.codecs.sound.state import FAST, FRACTION, FULL, MARGIN, build_model
from squeeze.numerics.jit import kernel
from tests.makers import sounds


@kernel
def follow(m, values):
    for i in range(values.shape[0]):
        m.state.channel = i % m.state.channels
        predictions.predict(m, i)
        for k in range(m.values.size):
            values[i, k] = m.values[k]
        predictions.learn(m, i)


def predicted(samples: np.ndarray, form: Layout, preset=FULL):
    """Return the model after samples, and what it predicted for each, int64 [samples, predictions]."""
    model = build_model(samples.size, form, preset)
    model.samples[MARGIN:] = samples.ravel()
    values = np.zeros((samples.size, preset.predictions), np.int64)
    follow(model, values)
    return model, values


def test_a_ramp_is_exact_by_the_last_two_samples():
    ramp = 3 * np.arange(200) - 40
    for preset, place in ((FAST, -1), (FULL, -2)):
        model, values = predicted(ramp, Layout(2, 1), preset)
        assert (values[2:, place] == ramp[2:] << FRACTION).all()
        assert model.recent[0] & 255 == 255  # the latest ones were exact
    assert (values[1:, -1] == ramp[:-1] << FRACTION).all()


@pytest.mark.parametrize("width", [1, 2, 4])
def test_predictions_stay_within_the_range_of_samples(width):
    most = 1 << 8 * width - 1
    _, values = predicted(np.tile([-most] * 5 + [most - 1] * 5, 30), Layout(width, 1))
    assert -most << FRACTION <= values.min() and values.max() < most << FRACTION


def test_the_cascade_and_least_squares_are_better_than_a_line():
    made = sounds.samples(600, 2, 16)
    _, values = predicted(made, Layout(2, 2))
    errors = np.abs((made.ravel()[:, None] << FRACTION) - values)[400:].mean(0)
    assert errors[1:-2].max() < 0.5 * errors[-2:].min()


def test_the_scale_follows_the_errors():
    noise = np.random.default_rng(0).integers(-1, 2, 400)
    quiet, _ = predicted(100 * noise, Layout(2, 1))
    loud, _ = predicted(10_000 * noise, Layout(2, 1))
    assert (loud.reach > 50 * quiet.reach).all() and (loud.inverse < quiet.inverse).all()
    assert loud.state.span > quiet.state.span
