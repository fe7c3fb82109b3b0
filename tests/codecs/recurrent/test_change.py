"""Fine-tuned weights: what is added, how sums are clipped, and what stays."""

import numpy as np
import pytest

from squeeze.codecs.deep import coder
from squeeze.codecs.recurrent import change, weights
from squeeze.codecs.stream import dictionary, levels


@pytest.fixture(scope="module")
def tensors():
    return weights.pretrained_tensors()


def test_scales_and_ngram_tables_do_not_change(tensors):
    shapes = change.shapes(tensors)
    assert list(shapes) == sorted(shapes)
    assert shapes["after.0.keeping"] == (1, 160) and shapes["up"] == (320, 160)
    assert {name for name in tensors if not name.endswith(".scale")} - set(shapes) == {f"grams.{k}" for k in range(3)}


def test_nothing_added_changes_nothing(tensors):
    none = {name: np.zeros(shape, np.int64) for name, shape in change.shapes(tensors).items()}
    after = change.changed(tensors, none)
    assert all(np.array_equal(after[name], tensors[name]) for name in tensors)
    assert change.network(None) is None


@pytest.mark.parametrize(("name", "low", "high"), [("head", -127, 127), ("up", 0, 15)])
def test_numbers_are_clipped_to_their_types(tensors, name, low, high):
    before = change.numbers(tensors[name])
    added = np.arange(before.size).reshape(before.shape) % 401 - 200
    after = change.changed(tensors, {name: added})
    assert np.array_equal(change.numbers(after[name]), (before + added).clip(low, high))
    assert after[name].dtype == tensors[name].dtype and after["down"] is tensors["down"]


def test_floats_move_by_steps(tensors):
    added = np.arange(4 * 160).reshape(4, 160)
    after = change.changed(tensors, {"before.0.taps": added})["before.0.taps"]
    assert after.dtype == np.float32
    assert np.array_equal(after, tensors["before.0.taps"] + added.astype(np.float32) / np.float32(256))
    huge = {name: np.full((4, 160), 1 << size) for name, size in (("before.0.taps", 39), ("after.0.taps", 15))}
    after = change.changed(tensors, huge)
    for name in huge:
        assert np.array_equal(after[name], tensors[name] + np.float32(128))


def test_kernels_are_compiled_for_one_kind_of_weights(tensors):
    for network in (weights.pretrained(), change.network({"head": np.ones((256, 160), np.int64)})):
        assert not any(array.flags.writeable for array in (network.embedding, *network.grams, *network.gram_scales))


@pytest.mark.parametrize("size", [1 << 39, -(1 << 39)])
def test_any_change_gives_a_network_that_can_be_computed(tensors, size):
    """Add changes that a damaged or malicious dictionary may hold."""
    chance = np.random.default_rng(3)
    added = {name: size * chance.integers(-1, 2, shape) for name, shape in change.shapes(tensors).items()}
    preset, data = levels.level(5).models("text"), np.frombuffer(b"Words, and more words: 1234.\n" * 6, np.uint8)
    start = dictionary.built_in_start(preset)._replace(network=change.network(added))
    coded = coder.encode(data, preset, start=start)
    assert np.array_equal(coder.decode(coded, data.size, preset, start=start), data)
