"""The state-space model beside its definition: predictions, gradients, learning, and the blocks coded beside it."""

import itertools

import numpy as np
import pytest

from squeeze.codecs.bitmodels import ssm, ssm_arrays, ssm_reference, ssm_training
from squeeze.codecs.deep import coder as deep, presets
from squeeze.errors import DamagedError
from squeeze.numerics.jit import kernel
from tests.makers import inputs

SIZES = ssm_arrays.Sizes(width=16, inner=32, states=8, layers=2, chunk=6)
PRESET = presets.DeepPreset(
    contexts=presets.preset(4, "text").contexts[:5], matches=(5,), selectors=14, buckets=1 << 12,
    rates=presets.preset(4, "text").rates, ssm=SIZES,
)  # fmt: skip


@kernel
def feed(s, byte):
    ssm.predict(s, byte)


@kernel
def update(s, byte):
    return ssm.update(s, byte)


@kernel
def next_chunk(s):
    ssm.next_chunk(s)


@kernel
def gradients(s, bank):
    ssm_training.gradients(s, bank)


def fed(tokens, sizes=SIZES, seed=3):
    """A model that was fed all but the last of `tokens`, one chunk, and float64 copies of its parameters."""
    model = ssm_arrays.build(sizes, ssm_arrays.initial_weights(sizes, seed))
    found = []
    update(model, int(tokens[0]))
    for token, following in itertools.pairwise(tokens):
        feed(model, int(token))
        found.append(model.probabilities.copy())
        update(model, int(following))
    return model, ssm_arrays.views(model.weights.astype(np.float64), sizes), np.array(found)


TOKENS = np.array([65, 66, 200, 65, 66, 67, 65])


def test_predictions_are_those_of_the_definition():
    _, parameters, found = fed(TOKENS)
    expected = np.exp(ssm_reference.log_probabilities(parameters, TOKENS[:-1]))
    assert np.abs(found - expected).max() < 1e-5
    assert found.sum(1) == pytest.approx(1, abs=1e-4)


def test_a_chunk_goes_on_from_the_one_before():
    tokens = np.arange(60, 60 + 2 * SIZES.chunk)
    model, parameters, _ = fed(tokens[: SIZES.chunk + 1])
    next_chunk(model)
    for token in tokens[SIZES.chunk : -1]:
        feed(model, int(token))
        update(model, 0)
    expected = np.exp(ssm_reference.log_probabilities(parameters, tokens[:-1])[-1])
    assert np.abs(model.probabilities - expected).max() < 1e-5


@pytest.mark.parametrize("name", ssm_arrays.shapes(SIZES))
def test_gradients_are_those_of_finite_differences(name):
    model, parameters, _ = fed(TOKENS)
    gradients(model, 0)
    slopes, array = getattr(model.trainer.slopes, name), getattr(parameters, name)
    generator = np.random.default_rng(5)
    places = [np.unravel_index(i, array.shape) for i in generator.integers(0, array.size, 6)]
    places += [np.unravel_index(np.abs(slopes).argmax(), array.shape)]
    for place in places:
        kept, costs = array[place], []
        for step in (1e-5, -1e-5):
            array[place] = kept + step
            costs.append(ssm_reference.cost(parameters, TOKENS[:-1], TOKENS[1:]))
        array[place] = kept
        assert slopes[place] == pytest.approx((costs[0] - costs[1]) / 2e-5, abs=2e-5, rel=2e-3)


def test_it_learns_what_it_sees():
    model, costs = ssm_arrays.build(SIZES), []
    pattern = np.frombuffer(b"abcdabce" * 60, np.uint8)
    for i, byte in enumerate(pattern.tolist()):
        if i:
            costs.append(-np.log2(model.probabilities[byte]))
        if update(model, byte):
            bank = int(model.state.bank)
            ssm_training.train(model, bank)
            model.weights[:] = model.trainer.weights
            next_chunk(model)
        feed(model, byte)
    assert np.mean(costs[:20]) > 5
    assert np.mean(costs[-20:]) < 1


def test_probabilities_of_bits_are_those_of_bytes():
    model, _, found = fed(TOKENS)
    node, product = 1, 1.0
    for shift in range(7, -1, -1):
        bit = (77 >> shift) & 1
        one = model.counts[2 * node + 1] / model.counts[node]
        product *= one if bit else 1 - one
        node = 2 * node + bit
    assert product == pytest.approx(found[-1][77], rel=1e-3)


@pytest.mark.parametrize("size", [1, 2, SIZES.chunk, SIZES.chunk + 1, SIZES.chunk + 2, 5_000])
def test_a_block_of_any_size_comes_back(size):
    data = np.frombuffer(inputs.words(5_000), np.uint8)[:size]
    coded = deep.encode(data, PRESET)
    assert coded == deep.encode(data, PRESET)
    if coded is not None:
        assert np.array_equal(deep.decode(coded, size, PRESET), data)


def test_weights_begin_the_same_everywhere():
    weights = ssm_arrays.initial_weights(ssm_arrays.Sizes())
    assert weights.dtype == np.float32
    assert float(weights[:1000].astype(np.float64).sum()) == 15.789200723171234


def test_code_that_ends_too_early_is_noticed():
    with pytest.raises(DamagedError, match="end too early"):
        deep.decode(b"\x12\x34", 100_000, PRESET)
