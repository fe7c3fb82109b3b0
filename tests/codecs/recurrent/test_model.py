"""The compiled network compared with its definition, and its results on every machine."""

import itertools

import numpy as np
import pytest

from squeeze.codecs.recurrent import model, weights
from squeeze.numerics.jit import kernel
from tests.makers import inputs, recurrent
from tests.references import recurrent_network

TEXT = np.frombuffer(b"\0The quick (brown) fox; jumps  over 12 lazy_dogs.\n\nAnd again: the quick fox.", np.uint8)


@kernel
def predict_lanes(network, first, last):
    model.predict(network, first, last)


def predict(network, byte):
    network.fed[0] = byte
    predict_lanes(network, 0, 1)


def predictions(tensors, fed):
    """float64 [T, 256], and the last counts."""
    network, found = weights.begin(weights.from_tensors(tensors)), []
    for byte in fed.tolist():
        predict(network, byte)
        found.append(network.counts[0, 256:] / network.counts[0, 1])
    return np.array(found), network.counts[0]


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"rows": 1},
        {"layers": (2, 0, 0)},
        {"layers": (0, 1, 1), "width": 16, "hidden": 16},
        {"width": 160, "hidden": 320, "word_width": 320, "word_hidden": 512, "rows": 4},
    ],
)
def test_predictions_are_those_of_the_definition(shape):
    tensors = recurrent.tensors(**shape)
    found, _ = predictions(tensors, TEXT)
    expected = np.exp(recurrent_network.log_probabilities(tensors, TEXT, rounded=True))
    assert np.abs(found - expected).max() < 2e-3
    assert np.abs(np.log(found / expected)).max() < 2e-2
    assert expected.max() > 0.05  # there is something to get wrong


def test_predictions_depend_on_earlier_bytes_alone():
    tensors, changed = recurrent.tensors(), TEXT.copy()
    changed[40:] ^= 1
    first, second = (predictions(tensors, fed)[0] for fed in (TEXT, changed))
    assert np.array_equal(first[:40], second[:40])
    assert not np.array_equal(first[40], second[40])


def test_lanes_do_not_touch_each_other():
    """Lanes that get bytes together, or in halves, give what each gives alone."""
    packed, lanes = weights.from_tensors(recurrent.tensors()), np.stack([TEXT, TEXT[::-1], np.roll(TEXT, 5)])
    alone = [predictions(recurrent.tensors(), fed)[1] for fed in lanes]
    for parts in ([(0, 3)], [(0, 2), (2, 3)]):
        network = weights.begin(packed, len(lanes))
        for fed in lanes.T:
            network.fed[:] = fed
            for first, last in parts:
                predict_lanes(network, first, last)
        assert np.array_equal(network.counts, alone)


def test_the_frequencies_are_the_same_on_every_machine():
    """Compare with numbers of random weights after two pages of words, which all instruction sets gave."""
    _, counts = predictions(recurrent.tensors(), np.frombuffer(inputs.words(4_000), np.uint8))
    assert int(counts[1]) == 164_763_467
    assert counts[[256 + 32, 256 + 101, 256 + 200]].tolist() == [69_825, 69_723, 365_743]


@pytest.mark.parametrize("wrong", ["missing", "shape", "type", "long", "rows"])
def test_refuses_tensors_of_wrong_names_shapes_or_types(wrong):
    tensors = recurrent.tensors()
    if wrong == "missing":
        del tensors["words.1.out"]
    elif wrong == "shape":
        tensors["after.0.down"] = tensors["after.0.down"][:, :-16]
    elif wrong == "type":
        tensors["head"] = tensors["head"].astype(np.int16)
    elif wrong == "long":
        tensors["up"] = np.zeros((528, 16), np.uint8)
        tensors["down"] = np.zeros((32, 264), np.uint8)
    else:
        for k in range(3):
            tensors[f"grams.{k}"] = tensors[f"grams.{k}"][:63]
    with pytest.raises((KeyError, ValueError)):
        weights.from_tensors(tensors)


def test_the_pretrained_network_knows_english():
    network, costs = weights.network(), []
    for before, byte in itertools.pairwise(b"\0" + TEXT.tobytes()[1:42]):
        predict(network, before)
        costs.append(-np.log2(network.counts[0, 256 + byte] / network.counts[0, 1]))
    assert np.mean(costs) < 4
