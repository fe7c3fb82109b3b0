"""The model of sounds begins with arrays whose sizes follow from its preset, within the estimate of its memory."""

import numpy as np
import pytest

from squeeze.codecs.sound.layout import Layout
from squeeze.codecs.sound.state import FAST, FULL, MARGIN, OTHER, SIZE, build_model, memory


@pytest.mark.parametrize("preset", [FAST, FULL])
@pytest.mark.parametrize("form", [Layout(1, 1), Layout(2, 2), Layout(4, 8)], ids=str)
def test_the_estimate_of_memory_covers_all_arrays(preset, form):
    model = build_model(5000, form, preset)
    arrays = [part for part in model if isinstance(part, np.ndarray)]
    assert 5000 * 8 < sum(part.nbytes for part in arrays) <= memory(5000 * form.width, preset)


def test_all_predictions_are_inputs_of_the_last_least_squares():
    model = build_model(10, Layout(2, 2), FULL)
    assert FULL.predictions == model.values.size == 10
    assert model.sizes[:, SIZE].tolist() == [32, 16, 128, 2, 8]
    assert model.sizes[:, OTHER].tolist() == [12, 8, 32, 0, 0]
    assert FAST.predictions == 3 and build_model(10, Layout(2, 2), FAST).sizes[:, SIZE].tolist() == [16]


def test_one_channel_has_no_inputs_from_another():
    model = build_model(10, Layout(2, 1), FULL)
    assert not model.sizes[:, OTHER].any()
    assert model.samples.size == MARGIN + 10 and model.misses.shape == (1, 10, 2)


def test_the_stages_of_the_cascade_have_their_taps_for_each_channel():
    model = build_model(10, Layout(2, 2), FULL)
    assert model.taps.tolist() == [[512, 4], [256, 6], [32, 5], [16, 4]]
    assert model.latest.shape == (2, 4, 1024) and model.weights_of.shape == (2, 4, 512)


def test_the_inputs_hold_contexts_predictions_matches_and_a_bias():
    model = build_model(10, Layout(2, 1), FULL)
    assert model.state.first_map == FULL.contexts + FULL.predictions
    assert model.state.bias == model.state.first_match + 2 * FULL.matches < model.inputs.size
    assert model.weights.shape[1] == model.inputs.size and not model.weights[:, model.state.bias].any()
