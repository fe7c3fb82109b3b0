"""The model of arrays begins with arrays whose sizes follow from its preset, within the estimate of its memory."""

import numpy as np
import pytest

from squeeze.codecs.array.layout import FLOAT, Layout
from squeeze.codecs.array.state import BUCKETS, FAST, FULL, MARGIN, build_model, memory


@pytest.mark.parametrize("preset", [FAST, FULL])
@pytest.mark.parametrize("form", [Layout(2), Layout(4, 3, FLOAT), Layout(8, 64)], ids=str)
def test_the_estimate_of_memory_covers_all_arrays(preset, form):
    model = build_model(5000, form, preset)
    arrays = [part for part in model if isinstance(part, np.ndarray)]
    assert 5000 * 8 < sum(part.nbytes for part in arrays) <= memory(5000 * form.width, preset)


def test_the_inputs_hold_all_contexts_predictions_and_a_bias():
    model = build_model(10, Layout(4, 3), FULL)
    contexts = FULL.of_numbers + FULL.of_bytes
    assert (model.hashes.size, model.values.size, model.numbers.size) == (contexts, FULL.predictions, MARGIN + 10)
    assert model.state.bias == contexts + 3 * FULL.predictions < model.inputs.size
    assert model.logs.shape == (3, FULL.predictions, 2)


def test_the_hash_table_grows_with_the_array_up_to_its_limit():
    small, large = (build_model(count, Layout(8), FAST).slots.size for count in (1, 2_000))
    assert small < large < build_model(1 << 20, Layout(8), FAST).slots.size == 64 << FAST.slot_bits


def test_curves_begin_with_the_probability_of_their_bucket():
    curve = build_model(1, Layout(2), FAST).curves[:BUCKETS] >> 10
    assert (np.diff(curve.astype(np.int64)) >= 0).all() and curve[0] < 1 << 14 and curve[-1] > (1 << 22) - (1 << 14)
