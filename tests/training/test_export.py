"""The package computes what was trained and exported."""

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.numpy import load_file

from squeeze.codecs.recurrent import model, weights
from squeeze.numerics.jit import kernel
from squeeze.recipes.train.byte_network import WORD_BITS, Shape, build, rounded
from tests.makers.corpora import corpus_of
from tests.references import recurrent_network
from training import checkpoint, export
from training.corpus import read
from training.streams import Rows
from training.train import Plan, Training

TEXT = np.frombuffer(b"\0def f(x):\n    return x + 1  # words, and more\n\xe2\x82\xac  \0\xff end" * 2, np.uint8)
SHAPES = {
    "flat": Shape(16, 2, 32),
    "by words": Shape(32, 2, 48, word_width=48, word_layers=2, word_feed_forward=32, gram_rows=64),
}


@kernel
def predict(network, fed):
    model.predict(network, fed)


def trained(shape):
    """Return a model with trained-looking norms and tables; the tables fit 4 bits."""
    torch.manual_seed(3)
    built = build(shape)
    with torch.no_grad():
        for name, weight in built.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5)
            if name.startswith("grams."):
                weight.copy_(rounded(weight.normal_(), WORD_BITS))
    return built


@pytest.mark.parametrize("name", SHAPES)
def test_the_package_computes_what_was_trained(name):
    built = trained(SHAPES[name])
    tensors = {key: value.numpy() for key, value in export.tensors(built).items()}
    with torch.no_grad():
        logits, _ = built(torch.from_numpy(TEXT.astype(np.int64))[None], built.start(1))
    expected = torch.log_softmax(logits[0].double(), -1).numpy()
    defined = recurrent_network.log_probabilities(tensors, TEXT)
    assert np.abs(defined - expected).max() < 0.2  # weights of 8 bits
    network = weights.begin(weights.from_tensors(tensors))
    rounded = recurrent_network.log_probabilities(tensors, TEXT, rounded=True)
    assert np.abs(rounded - defined).max() < 0.1  # activations of 8 bits
    for place, row in enumerate(rounded):
        predict(network, TEXT[place : place + 1])
        shares = network.frequencies[0] / network.frequencies[0].sum()
        assert np.log(shares) == pytest.approx(row, abs=2e-3)


def test_the_command_writes_the_file_of_the_package(tmp_path):
    rows = Rows.begin(read(corpus_of(tmp_path), "train"), 3, 16)
    training = Training(trained(SHAPES["by words"]), Plan(rows=3), rows)
    checkpoint.save(training, tmp_path)
    run = CliRunner().invoke(export.main, ["--run", str(tmp_path), "--into", str(tmp_path / "weights.safetensors")])
    assert run.exit_code == 0, run.output
    assert "wrote" in run.output
    written = load_file(tmp_path / "weights.safetensors")
    for key, value in export.tensors(training.model).items():
        assert np.array_equal(written[key], value.numpy()), key
