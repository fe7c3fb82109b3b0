"""`squeeze generate`: what it streams, drafts, and its errors.

Settings that come with a model neither run code nor work without end.
"""

import functools
import json
import shutil

import pytest
from click.testing import CliRunner
from tokenizers.processors import TemplateProcessing

import squeeze
from squeeze.checkpoint.pretrained import load_tokenizer
from squeeze.cli import main
from squeeze.errors import SqueezeError
from squeeze.kv import FullPrecision, QuantizedKVCache
from squeeze.kv.contract import CACHE
from squeeze.recipes.measure.compare import compare
from squeeze.recipes.measure.evaluate import opened as opened_for_text
from squeeze.recipes.measure.generate import chat_prompt, generate, opened
from tests.makers import tiny_models
from tests.makers.command import call

pytest.importorskip("transformers", reason="transformers is not installed")

from transformers import GenerationMixin


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_models.write_endless(tmp_path_factory.mktemp("kv") / "model")


def test_generate_streams_and_says_what_memory_it_took(folder):
    plain = call("generate", folder, "def main():", "-n", 90, "-T", 1, "--json")
    coded = call("generate", folder, "def main():", "-n", 90, "-T", 1, "--kv", "kivi:8,group=8,window=16")
    assert plain.exit_code == coded.exit_code == 0, coded.output
    assert json.loads(plain.output)["tokens"] == 90
    assert "KV cache" in coded.output.splitlines()[-1] and "torch" not in coded.output
    assert f"90 tokens after {json.loads(plain.output)['prompt_tokens']}" in coded.output


def test_what_a_model_prints_is_not_in_its_text(folder, monkeypatch):
    """Transformers' Reformer prints something with each token."""
    asked = "generate", folder, "def main():", "-n", 5, "-T", 1, "-q"
    expected = call(*asked).stdout
    prepare = GenerationMixin.prepare_inputs_for_generation

    @functools.wraps(prepare)  # transformers reads its signature
    def printing(*arguments, **options):
        print("Warning: an input")
        return prepare(*arguments, **options)

    monkeypatch.setattr(GenerationMixin, "prepare_inputs_for_generation", printing)
    found = call(*asked)
    assert found.stdout == expected
    assert "Warning: an input" in found.stderr


def test_a_draft_changes_nothing_but_the_time(folder, tmp_path):
    squeeze.factorize(folder, "svd", keep=0.9, out=tmp_path / "draft")
    plain = call("generate", folder, "def main():", "-n", 40, "-T", 1, "--json")
    helped = call("generate", folder, "def main():", "-n", 40, "-T", 1, "--json", "--draft", tmp_path / "draft")
    assert helped.exit_code == 0, helped.output
    ours, theirs = json.loads(helped.output), json.loads(plain.output)
    assert ours["text"] == theirs["text"] and ours["tokens"] == theirs["tokens"] == 40
    assert 0 < ours["accepted"] <= ours["proposed"]
    said = call("generate", folder, "def main():", "-n", 5, "--draft", tmp_path / "draft")
    assert said.output.splitlines()[-1].endswith("tokens were accepted")
    sampled = call("generate", folder, "a", "--temperature", "1", "--draft", tmp_path / "draft")
    assert sampled.exit_code == 1 and "a draft is for greedy decoding" in sampled.output


def test_a_draft_and_a_coded_cache(folder, tmp_path):
    squeeze.factorize(folder, "svd", keep=0.9, out=tmp_path / "draft")
    helped = ("--draft", tmp_path / "draft")
    asked = ("generate", folder, "def main():", "-n", 60, "-T", 1, "--json")
    exact = json.loads(call(*asked, *helped).output)
    for kv in ("full", "kivi:8,group=8,window=16"):
        done = call(*asked, *helped, "--kv", kv)
        assert done.exit_code == 0, done.output
        found = json.loads(done.output)
        assert found["tokens"] == 60 and 0 < found["accepted"] <= found["proposed"] and found["kv_bytes"] > 0
        assert kv != "full" or found["text"] == exact["text"]
    said = call(*asked[:-1], *helped, "--kv", "8")
    assert "KV cache" in said.output and said.output.splitlines()[-1].endswith("tokens were accepted")
    model, tokenizer = opened(folder)
    cache = QuantizedKVCache(model.config, FullPrecision())
    model(tokenizer("def", return_tensors="pt")["input_ids"], **{CACHE: cache})
    with pytest.raises(SqueezeError, match="a draft begins with an empty cache, and this one holds tokens"):
        generate(model, tokenizer, "def main():", cache=cache, draft=model)
    evicting = call(*asked, *helped, "--kv", "kivi:4+window:32")
    assert evicting.exit_code == 1 and "a draft needs a cache that keeps all tokens" in evicting.output


PROMPT = "def main():\n    return 1\n" * 6


@pytest.mark.parametrize("kv", [(), ("--kv", "kivi:4,group=8,window=16")])
def test_a_prompt_is_read_once(folder, tmp_path, kv):
    asked = ("-n", 20, "-T", 1, "--json", *kv)
    kept = ("--kv-file", tmp_path / "prompt.kv")
    plain = json.loads(call("generate", folder, PROMPT, *asked).output)
    first = call("generate", folder, PROMPT, *asked, *kept)
    assert first.exit_code == 0, first.output
    first, written = json.loads(first.output), (tmp_path / "prompt.kv").read_bytes()
    again = json.loads(call("generate", folder, PROMPT, *asked, *kept).output)
    assert first["text"] == again["text"] and (kv or first["text"] == plain["text"])
    assert (first["tokens_from_file"], again["tokens_from_file"]) == (0, first["prompt_tokens"] - 1)
    longer = call("generate", folder, PROMPT + "import", *asked[: -1 - len(kv)], *kept)  # the policy is the file's
    assert longer.exit_code == 0, longer.output
    taken = again["tokens_from_file"]
    assert longer.output.endswith(f"{tmp_path / 'prompt.kv'}: {taken} tokens of the prompt were read from it\n")
    assert (tmp_path / "prompt.kv").read_bytes() == written


def test_a_saved_prompt_refuses_other_models_policies_and_prompts(folder, tmp_path):
    path = tmp_path / "prompt.kv"

    def said(*arguments, model=folder):
        done = call("generate", model, *arguments, "-n", 2, "-q", "--kv-file", path)
        assert done.exit_code == 1 and len(done.output.splitlines()) == 1, done.output
        return done.output.removeprefix(f"Error: {path}: ").rstrip()

    assert call("generate", folder, PROMPT, "-n", 2, "--kv-file", path).exit_code == 0
    count = json.loads(call("generate", folder, PROMPT, "-n", 2, "--json", "--kv-file", path).output)[
        "tokens_from_file"
    ]
    other = f"this cache is of another prompt, of {count} tokens that are not the first of this one: name another file"
    assert said("import os" + PROMPT) == other
    assert said(PROMPT[:20]) == other
    assert said(PROMPT, "--kv", "4").endswith("not with the policy given")
    values = tiny_models.tensors(tiny_models.byte_level().get_vocab_size(), seed=5)
    changed = {"vocab_size": len(values["lm_head.weight"]), "eos_token_id": None}
    stranger = tiny_models.write_folder(tmp_path / "stranger", tiny_models.byte_level(), values, **changed)
    assert said(PROMPT, model=stranger) == "this cache was made by a model of other weights"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert said(PROMPT) == "checksum mismatch in the saved KV cache: the file is damaged"
    path.write_bytes(b"hello")
    assert len(said(PROMPT)) > 5
    assert path.read_bytes() == b"hello"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("", "--kv", "4"), "the prompt is empty: give at least one token to go on from"),
        (("a", "-n", "600"), "do not fit the model's 512"),
        (("a", "--kv", "4", "--kv-budget", "0.2"), "--kv and --kv-budget exclude each other: give one of them"),
        (
            ("a", "--kv-file", "x", "--draft", "y"),
            "--draft needs an empty cache: use either --draft or --kv-file",
        ),
        (("a", "--kv", "5"), "5 bits are not supported: choose from 1, 2, 3, 4, 8"),
    ],
)
def test_the_command_refuses_bad_arguments_in_one_line(folder, arguments, message):
    found = call("generate", folder, *arguments)
    assert found.exit_code == 1
    assert found.output.splitlines()[-1].endswith(message)


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_models.byte_level()


SETTINGS = {
    "beams": {"num_beams": 10**9},
    "sequences": {"num_return_sequences": 10**9},
    "lookup": {"prompt_lookup_num_tokens": 10**9},
    "code": {"custom_generate": "somebody/code", "penalty_alpha": 0.6, "top_k": 4},
    "cache": {"cache_implementation": "none such"},
    "length": {"max_length": 10**12, "min_length": 10**12},
    "groups": {"num_beam_groups": 4, "num_beams": 4},
}


@pytest.mark.parametrize("fault", SETTINGS)
def test_settings_of_a_folder_make_no_work_without_end(tmp_path, tokenizer, fault):
    folder = tiny_models.write_folder(tmp_path / "model", tokenizer, vocab_size=400)
    (folder / "generation_config.json").write_text(json.dumps(SETTINGS[fault]))
    done = CliRunner().invoke(main, ["generate", str(folder), "def", "-n", "3", "-q"])
    assert done.exit_code == 0 or done.output.startswith("Error: "), (done.output, done.exception)
    assert isinstance(done.exception, SystemExit | None), done.exception


def test_only_harmless_generation_settings_are_kept(tmp_path, tokenizer):
    folder = tiny_models.write_folder(tmp_path / "model", tokenizer, vocab_size=400)
    told = {"eos_token_id": [1, 2], "top_k": 7, "repetition_penalty": 1.5, "num_beams": 4}
    (folder / "generation_config.json").write_text(json.dumps(told))
    found = opened(folder)[0].generation_config
    assert (found.eos_token_id, found.top_k, found.repetition_penalty) == ([1, 2], 7, 1.5)
    assert found.num_beams in (None, 1)


def test_a_tokenizer_of_another_model(tmp_path, tokenizer):
    folder = tiny_models.write_folder(tmp_path / "model", tokenizer, tiny_models.tensors(40), vocab_size=40)
    text = tmp_path / "text"
    text.write_text("def main():\n    return 1\n" * 20)
    for command in (["eval", str(folder), "--text", str(text)], ["generate", str(folder), "def main():"]):
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 1 and "use its own tokenizer" in done.output, done.output
    with pytest.raises(SqueezeError, match="but the model has only 40: use its own tokenizer"):
        opened_for_text(folder, text, None)


TEMPLATE = (
    "{{ bos_token }}{% for one in messages %}# {{ one.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}def {% endif %}"
)
AS_PROMPT = "<|endoftext|># main\ndef "  # of the message "main"


@pytest.fixture
def chatting(tmp_path, folder):
    """A copy of the folder whose tokenizer has a chat template."""
    shutil.copytree(folder, tmp_path / "chatting")
    path = tmp_path / "chatting" / "tokenizer_config.json"
    config = json.loads(path.read_text()) if path.is_file() else {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps({**config, "chat_template": TEMPLATE, "bos_token": "<|endoftext|>"}))
    return tmp_path / "chatting"


def test_a_message_is_put_into_the_chat_template(chatting):
    asked = "-n", 8, "-T", 1, "--json"
    found = json.loads(call("generate", chatting, "main", "--chat", *asked).stdout)
    assert found == json.loads(call("generate", chatting, "<|endoftext|># main\ndef ", *asked).stdout) | {
        "seconds": found["seconds"]
    }


def test_a_first_token_that_the_tokenizer_adds_is_not_doubled(chatting):
    tokenizer = load_tokenizer(chatting)
    assert chat_prompt(tokenizer, "a") == "<|endoftext|># a\ndef "
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", tokenizer.bos_token_id)]
    )
    assert chat_prompt(tokenizer, "a") == "# a\ndef "


def test_a_model_without_a_template_is_told(folder):
    done = call("generate", folder, "main", "--chat", "-T", 1)
    assert done.exit_code == 1 and done.output == f"Error: {folder}: has no chat template: leave out --chat\n"


def test_messages_are_compared_by_the_same_template(chatting):
    found = compare(chatting, chatting, ["main"], tokens=4, chat=True)
    wanted = compare(chatting, chatting, [AS_PROMPT], tokens=4)
    assert found.identical == 1 and found.generations[0].prompt == "main"
    assert found.generations[0].original == wanted.generations[0].original
