"""Architectures are causal, carry their state, and are compared at equal multiplications; logs become tables."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from tests.makers.corpora import corpus_of
from training.compare import CANDIDATES, LOG, README, Symbols, Tokens, filled, main
from training.corpus import read

NAMES = [one.name for one in CANDIDATES]


@pytest.mark.parametrize("candidate", CANDIDATES, ids=NAMES)
def test_a_text_in_pieces_gives_what_the_whole_gives_and_nothing_looks_ahead(candidate):
    torch.manual_seed(1)
    model = candidate.make()
    data = torch.randint(0, 200, (2, 300))
    with torch.no_grad():
        whole, _ = model(data, model.start(2))
        pieces, state = [], model.start(2)
        for piece in data.split([1, 90, 2, 207], 1):
            logits, state = model(piece, state)
            pieces.append(logits)
        changed = data.clone()
        changed[:, 200] += 1
        other, _ = model(changed, model.start(2))
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=0, atol=1e-3)
    torch.testing.assert_close(other[:, :200], whole[:, :200], rtol=0, atol=1e-4)
    assert not torch.allclose(other[:, 200:], whole[:, 200:], atol=1e-3)


def test_attention_sees_its_window_and_no_more():
    torch.manual_seed(1)
    model = next(one for one in CANDIDATES if one.name == "Llama, window of 256").make()
    model.blocks = model.blocks[:1]
    data = torch.randint(0, 200, (1, 600))
    with torch.no_grad():
        first, _ = model(data, model.start(1))
        data[:, 300] += 1
        second, _ = model(data, model.start(1))
    differs = (first - second).abs().amax(-1)[0] > 1e-6
    assert differs.nonzero()[:, 0].tolist() == list(range(300, 556))


def test_bytes_are_compared_at_equal_multiplications():
    costs = [one.products(one.make()) for one in CANDIDATES if not one.of_tokens]
    assert max(costs) < 1.05 * min(costs)
    of_tokens = [one["products"] for one in map(json.loads, LOG.read_text().splitlines()) if "tokens" in one["name"]]
    assert len(of_tokens) == 2 and max(of_tokens) < 1.2 * min(costs)  # as README.md says


def test_tokens_give_the_bytes_back(tmp_path):
    split = read(corpus_of(tmp_path), "train")
    tokens = Tokens(split)
    assert tokens.tokenizer.decode(tokens.of(b"abc d\xc3\xa9f\n").tolist()) == "abc déf\n"
    coded = tokens.split(split, 1_000)
    assert tokens.bytes_each > 1 and len(coded) == len(Symbols().split(split, 1_000))
    assert np.array_equal(coded.content[coded.start[1] :][: coded.size[1]], tokens.of(split.document(1)))


def test_the_command_logs_a_line_per_architecture(tmp_path):
    corpus, log = corpus_of(tmp_path), tmp_path / "log.jsonl"
    words = ["--corpus", str(corpus), "--megabytes", "0.004", "--rows", "3", "--log", str(log)]
    for name in ("RG-LRU", "gated recurrence, tokens"):
        result = CliRunner().invoke(main, [*words, "--only", name], catch_exceptions=False)
        assert result.exit_code == 0, result.output
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(record["name"], set(record["bits"])) for record in records] == [
        ("RG-LRU", {"code", "prose"}),
        ("gated recurrence, tokens", {"code", "prose"}),
    ]
    assert all(record["bytes"] >= 4_000 for record in records)
    shown = filled("before\n<!-- table: architectures -->\nold\n<!-- end -->\nafter\n", log)
    assert shown.startswith("before\n<!-- table: architectures -->\n\n| architecture |")
    assert shown.endswith("|\n\n<!-- end -->\nafter\n") and shown.count("\n| ") == 3 and "| RG-LRU |" in shown


def test_the_command_needs_a_corpus():
    assert CliRunner().invoke(main, []).exit_code == 2


def test_the_table_of_the_readme_is_that_of_the_log():
    page = README.read_text()
    assert "<!-- table: architectures -->" in page and filled(page) == page
