"""`squeeze generate`: what it streams, drafts, and its errors."""

import json

import pytest

from tests.makers import tiny_models
from tests.makers.command import call


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tokenizer = tiny_models.byte_level()
    path = tmp_path_factory.mktemp("kv") / "model"
    return tiny_models.write_folder(path, tokenizer, vocab_size=tokenizer.get_vocab_size(), eos_token_id=None)


def test_generate_streams_and_says_what_memory_it_took(folder):
    plain = call("generate", folder, "def main():", "-n", 90, "-T", 1, "--json")
    coded = call("generate", folder, "def main():", "-n", 90, "-T", 1, "--kv", "kivi:8,group=8,window=16")
    assert plain.exit_code == coded.exit_code == 0, coded.output
    assert json.loads(plain.output)["tokens"] == 90
    assert "KV cache" in coded.output.splitlines()[-1] and "torch" not in coded.output
    assert f"90 tokens after {json.loads(plain.output)['prompt_tokens']}" in coded.output


def test_a_draft_changes_nothing_but_the_time(folder, tmp_path):
    import squeeze

    squeeze.factorize(folder, "svd", keep=0.9, out=tmp_path / "draft")
    plain = call("generate", folder, "def main():", "-n", 40, "-T", 1, "--json")
    helped = call("generate", folder, "def main():", "-n", 40, "-T", 1, "--json", "--draft", tmp_path / "draft")
    assert helped.exit_code == 0, helped.output
    ours, theirs = json.loads(helped.output), json.loads(plain.output)
    assert ours["text"] == theirs["text"] and ours["tokens"] == theirs["tokens"] == 40
    assert 0 < ours["accepted"] <= ours["proposed"]
    said = call("generate", folder, "def main():", "-n", 5, "--draft", tmp_path / "draft")
    assert said.output.splitlines()[-1].endswith("% were accepted")
    sampled = call("generate", folder, "a", "--temperature", "1", "--draft", tmp_path / "draft")
    assert sampled.exit_code == 1 and "a draft is for greedy decoding" in sampled.output


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("", "--kv", "4"), "the prompt is empty: give at least one token to go on from"),
        (("a", "-n", "600"), "do not fit the model's 512"),
        (("a", "--kv", "4", "--kv-budget", "0.2"), "--kv and --kv-budget say two things: give one of them"),
        (("a", "--kv", "4", "--draft", "x"), "a draft needs transformers' own cache: use either --draft or --kv"),
        (("a", "--kv", "5"), "5 bits are not offered here: choose from 1, 2, 3, 4, 8"),
    ],
)
def test_generate_errors(folder, arguments, message):
    found = call("generate", folder, *arguments)
    assert found.exit_code == 1
    assert found.output.splitlines()[-1].endswith(message)
