"""The package's trained mixers learn from samples of every kind."""

import json
import lzma

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load

from training import mixers
from training.corpus import SPLITS, write
from training.documents import Document

NAMES = {"kinds": ["code", "prose"], "sources": ["made"]}
SIZE = 3_000


@pytest.fixture
def corpus(tmp_path):
    generator = np.random.default_rng(1)
    letters = {"code": b"(x): =1\n", "prose": b"abc def\n"}
    documents = [
        Document(kind, "made", str(n), generator.choice([*letters[kind]], 700).astype(np.uint8).tobytes())
        for n in range(20)
        for kind in NAMES["kinds"]
    ]
    described = {split: write(tmp_path, split, documents, NAMES) for split in SPLITS}
    (tmp_path / "corpus.json").write_text(json.dumps(NAMES | described))
    return tmp_path


def test_samples_are_of_every_kind_and_the_same_again(corpus):
    chosen, again = (mixers.samples(corpus, SIZE) for _ in range(2))
    assert SIZE <= sum(piece.size for piece in chosen) < 2 * SIZE
    of_code = [bool((piece == ord("(")).any()) for piece in chosen]
    assert any(of_code) and not all(of_code)
    assert all(np.array_equal(*pair) for pair in zip(chosen, again, strict=True))


def test_the_command_writes_what_mixers_begin_with(corpus, tmp_path):
    words = ["--corpus", str(corpus), "--into", str(tmp_path), "--megabytes", str(SIZE / 1e6), "--level", "5"]
    run = CliRunner().invoke(mixers.main, words)
    assert run.exit_code == 0, run.output
    found = load(lzma.decompress((tmp_path / "text.5.safetensors.xz").read_bytes()))
    rows, weights = found["matrix.00"], found["matrix.02"]
    assert rows[0].size == weights.shape[-1] > 100  # planes of transposed integers
    assert sorted(found) == [f"matrix.{k:02}" for k in range(14)]
