"""`squeeze compare`: texts, agreement and KL against what a few lines of torch find, the page, and errors."""

import json
import re

import pytest
import torch

from squeeze.checkpoint.pretrained import load_tokenizer
from squeeze.errors import SqueezeError
from squeeze.integrations.load_model import load_model
from squeeze.recipes.measure.compare import compare, read_prompts
from tests.makers import tiny_models
from tests.makers.command import call

pytest.importorskip("transformers", reason="transformers is not installed")

PROMPTS = ["def main():", "import os", 'print("'] * 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_models.write_endless(tmp_path_factory.mktemp("models") / "model")


@pytest.fixture(scope="module")
def other(tmp_path_factory, folder):
    tokenizer = tiny_models.byte_level()
    values = tiny_models.tensors(tokenizer.get_vocab_size())
    values = {name: value + 0.05 * value.mean(-1, keepdims=True) for name, value in values.items()}
    path = tmp_path_factory.mktemp("models") / "other"
    return tiny_models.write_folder(path, tokenizer, values, vocab_size=tokenizer.get_vocab_size(), eos_token_id=None)


@torch.inference_mode()
def likeliest(model, ids, count):
    """Generate greedily without a cache."""
    for _ in range(count):
        ids = torch.cat([ids, model(ids[None]).logits[0, -1:].argmax(-1)])
    return ids


@torch.inference_mode()
def test_texts_and_divergences_are_those_of_a_plain_loop(folder, other):
    found = compare(folder, other, PROMPTS, tokens=12)
    first, second, tokenizer = load_model(folder), load_model(other), load_tokenizer(folder)
    divergences, agreed = [], []
    for prompt, pair in zip(PROMPTS, found.generations, strict=True):
        ids = torch.tensor(tokenizer(prompt)["input_ids"])
        whole, ours = likeliest(first, ids, 12), likeliest(second, ids, 12)
        assert pair.original == "".join(pair.pieces) == tokenizer.decode(whole[len(ids) :], skip_special_tokens=True)
        assert pair.text == tokenizer.decode(ours[len(ids) :], skip_special_tokens=True)
        same = (whole == ours)[len(ids) :].tolist()
        assert pair.same == (same.index(False) if False in same else 12)
        theirs, others = (torch.log_softmax(model(whole[None]).logits[0].double(), -1) for model in (first, second))
        kl = (theirs.exp() * (theirs - others)).sum(-1)[len(ids) - 1 : -1]
        assert pair.kl == pytest.approx(kl.tolist(), rel=1e-3, abs=1e-6)
        divergences += kl.tolist()
        agreed += (others.argmax(-1)[len(ids) - 1 : -1] == whole[len(ids) :]).tolist()
    assert found.tokens == len(divergences) == 12 * len(PROMPTS)
    assert found.kl_mean == pytest.approx(sum(divergences) / len(divergences), rel=1e-3)
    assert found.top1_agreement == pytest.approx(sum(agreed) / len(agreed))
    low, high = found.intervals["kl_mean"]
    assert low < found.kl_mean < high
    assert found.worst[0].kl == pytest.approx(max(divergences), rel=1e-3)
    assert [place.kl for place in found.worst] == sorted((place.kl for place in found.worst), reverse=True)


def test_a_model_compared_with_itself_is_identical(folder):
    found = compare(folder, folder, PROMPTS[:2], tokens=8)
    assert (found.identical, found.same, found.top1_agreement) == (2, 1.0, 1.0)
    assert found.kl_mean == pytest.approx(0, abs=1e-6) and found.intervals == {}


def test_the_command_prints_texts_json_and_a_page(folder, other, tmp_path):
    (tmp_path / "prompts.txt").write_text("def main():\n\n<b>\n")
    asked = ("compare", folder, other, "--prompts", tmp_path / "prompts.txt", "-n", 6, "-T", 1)
    done = call(*asked)
    assert done.exit_code == 0, done.output
    assert "[2] <b>\n  A: " in done.output and "greedy texts: " in done.output
    done = call(*asked, "--json", "--report", tmp_path / "page.html")
    record = json.loads(done.stdout)
    assert [len(pair["kl"]) for pair in record["generations"]] == [6, 6] and record["tokens"] == 12
    assert call(*asked, "-q").output == ""
    page = (tmp_path / "page.html").read_text()
    assert "Side by side" in page and "&lt;b&gt;" in page and page.count("--shade:") == 12
    assert len(re.findall(r"<tr><td>\d", page)) == 10
    (tmp_path / "found.json").write_text(done.stdout)
    done = call("report", tmp_path / "found.json", tmp_path / "found.json", "-o", tmp_path / "both.html")
    assert done.exit_code == 0, done.output


def test_prompts_come_from_lines_or_json(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": "one\\ntwo"}\n{"text": "three"}\n')
    assert read_prompts(tmp_path / "a.jsonl") == ["one\ntwo", "three"]


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.txt", b"\n \n", "has no prompt"),
        ("a.txt", b"\xff\xfe", "is not text in UTF-8"),
        ("a.jsonl", b'{"other": "x"}\n', 'a line is not a JSON object with a "prompt" or a "text"'),
        ("a.jsonl", b'{"prompt": 3}\n', 'a line is not a JSON object with a "prompt" or a "text"'),
        ("a.jsonl", b"[1\n", 'a line is not a JSON object with a "prompt" or a "text"'),
    ],
)
def test_refuses_files_without_prompts(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SqueezeError) as raised:
        read_prompts(tmp_path / name)
    assert str(raised.value) == f"{tmp_path / name}: {message}"


def test_refuses_models_with_different_vocabularies(folder, tmp_path):
    tokenizer = tiny_models.sentence_piece()
    foreign = tiny_models.write_folder(tmp_path / "foreign", tokenizer, vocab_size=tokenizer.get_vocab_size())
    with pytest.raises(SqueezeError, match="have different vocabularies, so they cannot be compared"):
        compare(folder, foreign, PROMPTS[:1], tokens=2)
    with pytest.raises(SqueezeError, match="do not fit the model's 512"):
        compare(folder, folder, PROMPTS[:1], tokens=600)
