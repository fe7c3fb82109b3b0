"""Perplexity, KL divergence and agreement against what a few lines of torch find, and `squeeze eval`."""

import json
import math
import shutil

import pytest
import torch
from click.testing import CliRunner

from squeeze.checkpoint.pretrained import load_tokenizer
from squeeze.cli import main
from squeeze.engine.quality import evaluate
from squeeze.errors import FormatError, ModelError, SqueezeError
from squeeze.integrations.load_model import load_model
from tests.makers import tiny_models

pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS = torch.randint(0, 300, (70,), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_models.write_folder(
        tmp_path_factory.mktemp("models") / "model", tiny_models.byte_level(), vocab_size=400
    )


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    tokenizer = tiny_models.byte_level()
    values = tiny_models.tensors(400, seed=2)
    return tiny_models.write_folder(tmp_path_factory.mktemp("models") / "other", tokenizer, values, vocab_size=400)


def log_probabilities(model, ids):
    with torch.no_grad():
        return torch.log_softmax(model(ids[None]).logits[0].double(), -1)


def test_one_window_is_the_mean_over_all_but_the_first_token(folder):
    model = load_model(folder)
    logs = log_probabilities(model, TOKENS)
    loss = -logs[:-1].gather(1, TOKENS[1:, None]).mean()
    found = evaluate(model, TOKENS, window=100)
    assert found.tokens == 69
    assert found.perplexity == pytest.approx(math.exp(loss), rel=1e-5)
    assert found.tokens_per_second > 0
    assert found.kl_mean is None


@pytest.mark.parametrize(
    ("window", "stride", "predicted"), [(16, None, 70 - 5), (16, 16, 65), (16, 5, 69), (16, 1, 69)]
)
def test_windows_predict_no_token_twice(folder, window, stride, predicted):
    model = load_model(folder)
    losses, seen = [], {0}
    for start in range(0, 70, stride or window):
        ids = TOKENS[start : start + window]
        logs = log_probabilities(model, ids)
        for i in range(1, len(ids)):
            if start + i not in seen:
                losses.append(-logs[i - 1, ids[i]].item())
                seen.add(start + i)
    found = evaluate(model, TOKENS, window=window, stride=stride)
    assert found.tokens == len(losses) == predicted
    assert found.perplexity == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-5)


def test_distance_from_the_original(folder, other):
    model, original = load_model(other), load_model(folder)
    ours, theirs = log_probabilities(model, TOKENS)[:-1], log_probabilities(original, TOKENS)[:-1]
    kl = (theirs.exp() * (theirs - ours)).sum(-1)
    found = evaluate(model, TOKENS, window=100, original=original)
    assert found.kl_mean == pytest.approx(kl.mean().item(), rel=1e-4)
    assert found.kl_p99 == pytest.approx(kl.sort().values[68].item(), rel=1e-4)  # the 69th of 69
    assert found.top1_agreement == pytest.approx((ours.argmax(-1) == theirs.argmax(-1)).double().mean().item())
    same = evaluate(original, TOKENS, window=100, original=original)
    assert same.kl_mean == pytest.approx(0, abs=1e-6)
    assert same.top1_agreement == 1


def test_the_number_of_windows_is_a_limit(folder):
    assert evaluate(load_model(folder), TOKENS, window=16, windows=2).tokens == 30


@pytest.mark.parametrize("count", [0, 1])
def test_refuses_a_text_of_fewer_than_two_tokens(folder, count):
    with pytest.raises(SqueezeError, match=f"expected at least 2 tokens to measure perplexity, got {count}"):
        evaluate(load_model(folder), TOKENS[:count])


def test_refuses_folders_that_are_not_models(tmp_path, folder):
    (tmp_path / "config.json").write_text('{"model_type": "nonesuch"}')
    with pytest.raises(FormatError, match="has neither"):
        load_model(tmp_path)
    shutil.copyfile(folder / "model.safetensors", tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="nonesuch"):
        load_model(tmp_path)
    with pytest.raises(ModelError, match="has no tokenizer"):
        load_tokenizer(tmp_path)
    for load in (load_model, load_tokenizer):
        with pytest.raises(ModelError, match="missing: no such folder"):
            load(tmp_path / "missing")
        with pytest.raises(ModelError, match=r"safetensors: is a file, .* `squeeze import` makes one of a GGUF file"):
            load(tmp_path / "model.safetensors")


def test_the_command_prints_json_and_compares(tmp_path, folder, other):
    text = tmp_path / "text.txt"
    text.write_text("def main():\n    return 1\n" * 20)
    done = CliRunner().invoke(main, ["eval", str(folder), "--text", str(text), "--window", "32", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["perplexity"] > 1
    done = CliRunner().invoke(main, ["eval", str(other), "--text", str(text), "--original", str(folder), "-T", "1"])
    assert "kl mean:" in done.output
    text.write_bytes(b"\xff\xfe")
    done = CliRunner().invoke(main, ["eval", str(folder), "--text", str(text)])
    assert done.exit_code == 1
    assert done.output == f"Error: {text}: is not text in UTF-8\n"
