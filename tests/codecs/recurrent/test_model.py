"""The compiled network compared with its definition, and its results on every machine."""

import numpy as np
import pytest

from squeeze.codecs.recurrent import model, weights
from squeeze.numerics.jit import kernel
from tests.makers import inputs, recurrent
from tests.references import recurrent_network

TEXT = np.frombuffer(b"\0The quick (brown) fox; jumps  over 12 lazy_dogs.\n\nAnd again: the quick fox.", np.uint8)


@kernel
def predict(network, fed):
    model.predict(network, fed)


def frequencies(tensors, fed, together=1):
    """int32 [T, 256], from a network that gets some bytes together."""
    network, found, fed = weights.begin(weights.from_tensors(tensors)), [], fed.copy()  # one type for `predict`
    for begin in range(0, fed.size, together):
        some = fed[begin : begin + together]
        predict(network, some)
        found += list(network.frequencies[: some.size].copy())
    return np.array(found)


def predictions(tensors, fed):
    """float64 [T, 256]."""
    found = frequencies(tensors, fed)
    return found / found.sum(1, keepdims=True)


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
    found = predictions(tensors, TEXT)
    expected = np.exp(recurrent_network.log_probabilities(tensors, TEXT, rounded=True))
    assert np.abs(found - expected).max() < 2e-3
    assert np.abs(np.log(found / expected)).max() < 2e-2
    assert expected.max() > 0.05  # there is something to get wrong


def test_predictions_depend_on_earlier_bytes_alone():
    tensors, changed = recurrent.tensors(), TEXT.copy()
    changed[40:] ^= 1
    first, second = (predictions(tensors, fed) for fed in (TEXT, changed))
    assert np.array_equal(first[:40], second[:40])
    assert not np.array_equal(first[40], second[40])


@pytest.mark.parametrize("together", [2, 7, weights.ROWS])
@pytest.mark.parametrize("layers", [(1, 2, 1), (2, 0, 0)])
def test_bytes_fed_together_give_what_each_gives_alone(together, layers):
    tensors = recurrent.tensors(layers=layers)
    assert np.array_equal(frequencies(tensors, TEXT, together), frequencies(tensors, TEXT))


def test_the_frequencies_are_the_same_on_every_machine():
    """Compare with numbers of random weights after two pages of words, which all instruction sets gave."""
    last = frequencies(recurrent.tensors(), np.frombuffer(inputs.words(4_000), np.uint8))[-1]
    assert int(last.sum()) == 164_763_467
    assert last[[32, 101, 200]].tolist() == [69_825, 69_723, 365_743]


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
    found = predictions(weights.pretrained_tensors(), np.frombuffer(b"\0" + TEXT.tobytes()[1:41], np.uint8))
    assert np.mean(-np.log2(found[np.arange(41), TEXT[1:42]])) < 4
