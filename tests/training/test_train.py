"""A stopped training continues to the same weights, batches have every byte once, and logs have the results."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from squeeze.recipes.train.byte_network import Shape, build, parameters
from tests.makers.corpora import corpus_of
from training import checkpoint
from training.corpus import read
from training.streams import START, Rows
from training.train import Plan, Training, main

SHAPE = Shape(16, 2, 24, word_width=20, word_layers=1, word_feed_forward=24)
PLAN = Plan(rows=3, time=32, total=100_000)


@pytest.fixture
def corpus(tmp_path):
    return corpus_of(tmp_path)


def training(corpus):
    torch.manual_seed(2)
    return Training(build(SHAPE), PLAN, Rows.begin(read(corpus, "train"), PLAN.rows, PLAN.time))


def test_rows_hold_every_byte_of_their_documents_in_order(corpus):
    chosen = read(corpus, "train")
    rows = Rows.begin(chosen, 3, 16)
    seen = {row: [] for row in range(3)}
    for _ in range(200):
        batch = rows.take()
        inputs, targets = batch.inputs.numpy(), batch.targets.numpy()
        assert batch.known == (targets >= 0).sum()
        for row in range(3):
            known = targets[row] >= 0
            if batch.fresh[row]:
                assert inputs[row, 0] == START
                seen[row].append(b"")
            else:
                assert inputs[row, 0] == seen[row][-1][-1]
            assert np.array_equal(inputs[row, 1:][known[1:]], targets[row, :-1][known[1:]])
            seen[row][-1] += bytes(targets[row][known].astype(np.uint8))
    for row in range(3):
        cycle = [chosen.document(number) for number in range(row, len(chosen), 3)]
        whole = seen[row][:-1]
        assert whole == (cycle * len(whole))[: len(whole)]


def test_too_few_documents_are_refused(corpus):
    with pytest.raises(ValueError, match="10 documents are too few for 11 rows"):
        Rows.begin(read(corpus, "train"), 11, 16)


def test_rates_rise_stay_and_fall():
    factors = [Plan(total=1000).factor(seen) for seen in (0, 5, 10, 500, 800, 900, 1000)]
    assert factors == pytest.approx([0.01, 0.51, 1, 1, 1, 0.5, 0])


def test_a_resumed_training_gives_the_same_weights(corpus, tmp_path):
    through, first = training(corpus), training(corpus)
    for _ in range(4):
        through.step()
    for _ in range(2):
        first.step()
    checkpoint.save(first, tmp_path)
    second = training(corpus)
    checkpoint.restore(second, tmp_path)
    for _ in range(2):
        second.step()
    assert (second.seen, through.seen > 0) == (through.seen, True)
    for one, other in zip(through.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_command_trains_and_goes_on(corpus, tmp_path):
    words = [f"--{name.replace('_', '-')}={value}" for name, value in (vars(SHAPE) | vars(PLAN)).items()]
    words = ["--corpus", str(corpus), "--into", str(tmp_path / "run"), "--minutes=0.02", "--no-compile", *words]
    for _ in range(2):
        result = CliRunner().invoke(main, words, catch_exceptions=False)
        assert result.exit_code == 0, result.output
    first, *records = map(json.loads, (tmp_path / "run" / "log.jsonl").read_text().splitlines())
    assert (first["width"], first["parameters"]) == (16, parameters(build(SHAPE)))
    assert json.loads((corpus / "corpus.json").read_text())["train"]["sha256"].startswith(first["corpus"])
    assert 0 < records[0]["bytes"] < records[1]["bytes"]
    assert set(records[0]["bits"]) == {"code", "prose"}
