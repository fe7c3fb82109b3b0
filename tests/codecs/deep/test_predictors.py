"""Predictors of levels 4 to 6: widths and offsets follow from the tuple; a new one is its arrays, inputs and steps."""

from typing import NamedTuple

import numpy as np
import pytest

from squeeze.codecs.deep import predictors
from squeeze.codecs.deep.arrays import FINAL_ROWS, FIRST_FINAL, FIRST_ROW, build_model
from squeeze.codecs.deep.predictor import Predictor, Shared, gather_in_turn, in_turn
from squeeze.codecs.deep.presets import CONTEXTS, name_of, preset
from squeeze.numerics.jit import inline, kernel


class Count(NamedTuple):
    ones: np.ndarray


@inline
def _gather_ones(m, own, inputs):
    inputs[0] = own.ones[0]
    inputs[1] = -1


@inline
def _update_ones(m, own, bit):
    own.ones[0] += bit


TOY = Predictor(
    lambda preset, extent: Count(np.zeros(1, np.int64)),
    lambda preset: np.array([0.5, 0.25], np.float32),
    _gather_ones,
    lambda preset: ["ones", "a constant"],
    update=_update_ones,
)
gather = gather_in_turn([TOY.gather, TOY.gather])
update = in_turn([TOY.update, None])


@kernel
def take(m, bits):
    shared = Shared(m.data, m.state, m.registers, m.inputs)
    for bit in bits:
        gather(shared, m.predictors, m.first)
        update(shared, m.predictors, bit)
    gather(shared, m.predictors, m.first)


@pytest.mark.parametrize("level", [4, 5, 6])
@pytest.mark.parametrize("kind", CONTEXTS)
def test_inputs_lie_where_the_format_says(level, kind):
    chosen = preset(level, kind)
    n, matches = len(chosen.contexts), len(chosen.matches)
    first, weights = predictors.lay_out(chosen)
    assert first.tolist() == [0, 4 * n + 16, 4 * n + 16 + 2 * matches, 4 * n + 16 + 2 * matches + 1]
    assert weights.size == -(-(4 * n + 16 + 2 * matches + 4) // 16) * 16
    assert weights[4 * n : 4 * n + 4].tolist() == [np.float32(0.5 if chosen.network else 0.84), 0, 0, 0]
    assert not weights[4 * n + 4 : 4 * n + 16].any()
    assert weights[first[3]] == np.float32(0.5 if chosen.network else 0.03)
    assert (np.delete(weights, [*range(4 * n, 4 * n + 16), first[3]]) == np.float32(0.03)).all()


@pytest.mark.parametrize("level", [4, 5, 6])
@pytest.mark.parametrize("kind", CONTEXTS)
def test_every_input_has_a_name(level, kind):
    chosen = preset(level, kind)
    names = predictors.input_names(chosen)
    assert len(names) == predictors.lay_out(chosen)[1].size
    assert all(names.count(name_of(context)) == 4 for context in chosen.contexts)


def test_rows_of_weight_sets_follow_each_other():
    assert FIRST_ROW[:4] == (0, 1, 769, 2817)
    assert FIRST_ROW.history3 == 769 + 11 * 2048
    assert (FINAL_ROWS, FIRST_FINAL) == ((256, 2048, 256, 192), (0, 256, 2304, 2560))


def test_a_new_predictor_needs_to_know_no_other(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(predictors, "PREDICTORS", (TOY, TOY))
        model = build_model(np.zeros(10, np.uint8), preset(4, "text"))
    assert model.first.tolist() == [0, 2]
    assert model.weights[:5].tolist() == [0.5, 0.25, 0.5, 0.25, np.float32(0.03)]
    take(model, np.array([1, 0, 1]))
    assert model.inputs[:4].tolist() == [2, -1, 0, -1]
