"""The compiled network compared with its definition, and its results on every machine."""

import itertools

import numpy as np
import pytest

from squeeze.codecs.recurrent import model, weights
from squeeze.numerics import nibbles, quads, tiles
from squeeze.numerics.jit import kernel
from tests.makers import inputs, recurrent
from tests.makers.integers import codes, integers
from tests.references import recurrent_network

TEXT = np.frombuffer(b"\0The quick (brown) fox; jumps  over 12 lazy_dogs.\n\nAnd again: the quick fox.", np.uint8)


@kernel
def predict(network, byte):
    model.predict(network, byte)


def predictions(tensors, fed):
    """float64 [T, 256], and the last counts."""
    network, found = weights.begin(weights.from_tensors(tensors)), []
    for byte in fed.tolist():
        predict(network, byte)
        found.append(network.counts[256:] / network.counts[1])
    return np.array(found), network.counts


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
    expected = np.exp(recurrent_network.log_probabilities(tensors, TEXT))
    assert np.abs(found - expected).max() < 2e-3
    assert np.abs(np.log(found / expected)).max() < 2e-2
    assert expected.max() > 0.05  # there is something to get wrong


def test_predictions_depend_on_earlier_bytes_alone():
    tensors, changed = recurrent.tensors(), TEXT.copy()
    changed[40:] ^= 1
    first, second = (predictions(tensors, fed)[0] for fed in (TEXT, changed))
    assert np.array_equal(first[:40], second[:40])
    assert not np.array_equal(first[40], second[40])


@kernel
def sums_by_pairs(matrices, scratch, inputs):
    model._sums_by_pairs(matrices, 0, scratch, inputs)


@kernel
def sums_by_fours(matrices, scratch, inputs):
    model._sums_by_fours(matrices, 0, scratch, inputs)


def pack_pairs(codes, bits):
    return (nibbles if bits == 4 else tiles).pack(codes).view(np.uint8).ravel()


WAYS = [(sums_by_pairs, pack_pairs)] + [(sums_by_fours, quads.pack)] * quads.AVAILABLE


@pytest.mark.parametrize(("sums", "pack"), WAYS, ids=lambda way: getattr(way, "__name__", ""))
@pytest.mark.parametrize(("outputs", "inputs"), [(16, 8), (48, 40), (256, 160), (144, 512)])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("extreme", [False, True])
def test_both_ways_to_multiply_give_the_exact_sums(sums, pack, outputs, inputs, bits, extreme):
    """Processors with and without products in fours decode the same bytes."""
    matrix = codes((outputs, inputs), bits, 1)
    row = integers((inputs,), quads.TOP, 2, "any", np.int16)
    if extreme:
        matrix[...], row[...] = matrix.max(), -quads.TOP
    stack = weights.begin(weights.from_tensors(recurrent.tensors(width=160, word_hidden=512)))
    scratch = stack.scratch._replace(quantised=np.zeros(512, np.int16), sums=np.zeros(256, np.int32))
    scratch.quantised[:inputs] = row
    matrices = weights.Matrices(pack(matrix, bits)[None], bits, np.zeros((1, outputs), np.float32))
    sums(matrices, scratch, inputs)
    assert np.array_equal(scratch.sums[:outputs], matrix.astype(np.int64) @ row.astype(np.int64))


def test_the_frequencies_are_the_same_on_every_machine():
    """Compare with numbers of random weights after two pages of words, which both kinds of products gave."""
    _, counts = predictions(recurrent.tensors(), np.frombuffer(inputs.words(4_000), np.uint8))
    assert int(counts[1]) == 161_299_216
    assert counts[[256 + 32, 256 + 101, 256 + 200]].tolist() == [69_907, 62_768, 348_296]


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
        costs.append(-np.log2(network.counts[256 + byte] / network.counts[1]))
    assert np.mean(costs) < 4
