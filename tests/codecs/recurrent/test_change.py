"""A change of the network: what is added, within what tensors hold, and what stays."""

import numpy as np
import pytest

from squeeze.codecs.recurrent import change, weights


@pytest.fixture(scope="module")
def tensors():
    return weights.pretrained_tensors()


def test_what_may_change(tensors):
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
def test_numbers_stay_within_what_tensors_hold(tensors, name, low, high):
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


def test_kernels_are_compiled_for_one_kind_of_weights(tensors):
    for network in (weights.pretrained(), change.network({"head": np.ones((256, 160), np.int64)})):
        assert not any(array.flags.writeable for array in (network.embedding, *network.grams, *network.gram_scales))
