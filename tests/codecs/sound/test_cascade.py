"""The adaptive filters of the cascade learn a tone, and stay still if there is nothing to learn."""

import numpy as np

from squeeze.codecs.sound import cascade
from squeeze.codecs.sound.layout import Layout
from squeeze.codecs.sound.state import FRACTION, FULL, build_model
from squeeze.numerics.jit import kernel


@kernel
def follow(m, rest, left):
    for number in range(rest.size):
        cascade.estimate(m, number)
        left[number] = rest[number] - m.outputs.sum()
        cascade.learn(m, number, rest[number])


def filtered(samples: np.ndarray):
    """Return the model after samples of one channel, and what its filters left of each, with fractional bits."""
    model, left = build_model(1, Layout(2, 1), FULL), np.zeros(samples.size, np.int64)
    follow(model, samples.astype(np.int64) << FRACTION, left)
    return model, left


def test_a_tone_is_learned():
    tone = np.round(8000 * np.sin(np.arange(1600) * 0.21))
    _, left = filtered(tone)
    assert left[0] == int(tone[0]) << FRACTION
    assert np.abs(left[-100:]).mean() < 0.05 * np.abs(tone[-100:]).mean() * (1 << FRACTION)


def test_silence_is_predicted_as_silence():
    model, left = filtered(np.zeros(600))
    assert not left.any() and not model.weights_of.any() and not model.power.any()


def test_the_power_is_that_of_the_latest_inputs():
    model, _ = filtered(np.random.default_rng(0).integers(-30_000, 30_000, 700))
    for stage, (taps, _) in enumerate(FULL.cascade):
        latest = model.latest[0, stage].astype(np.int64)
        assert (latest[:taps] == latest[taps : 2 * taps]).all()
        assert model.power[0, stage] == (latest[:taps] ** 2).sum() > 0
